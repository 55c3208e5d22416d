"""Lines of tegrastats. One was recorded on a real board; the others follow NVIDIA's documentation and the formats that
its versions are known to print, with made-up figures."""

# Recorded on a Jetson Nano, JetPack 4.
NANO_IDLE = (
    "RAM 613/3964MB (lfb 634x4MB) SWAP 0/1982MB (cached 0MB) CPU [2%@102,1%@102,0%@102,0%@102] EMC_FREQ 0% "
    "GR3D_FREQ 0% PLL@39C CPU@40.5C PMIC@100C GPU@41C AO@46C thermal@41C POM_5V_IN 900/943 POM_5V_GPU 0/0 "
    "POM_5V_CPU 123/123"
)

# From documentation.
XAVIER = (
    "RAM 2318/15692MB (lfb 2x4MB) SWAP 0/7846MB (cached 0MB) CPU [1%@1190,0%@1190,off,off,off,off,off,off] "
    "EMC_FREQ 7%@1600 GR3D_FREQ 10%@1300 APE 150 MTS fg 0% bg 0% AO@35C GPU@35C Tdiode@38.5C PMIC@100C AUX@35C "
    "CPU@36.5C thermal@35.6C Tboard@36C GPU 620/310 CPU 311/311 SOC 933/933 CV 0/0 VDDRQ 155/155 SYS5V 1493/1493"
)
ORIN = (
    "11-17-2022 12:34:56 RAM 2448/30536MB (lfb 6x4MB) SWAP 0/15268MB (cached 0MB) CPU [0%@729,3%@729,off,off] "
    "EMC_FREQ 0%@665 GR3D_FREQ 0%@[1300,1100] NVENC off NVDEC off VIC_FREQ 729 APE 174 CV0@-256C CPU@46.5C "
    "Tboard@35C SOC2@43C Tdiode@36C GPU@-256C tj@46.5C VDD_GPU_SOC 2403mW/2403mW VDD_CPU_CV 801mW/801mW "
    "VIN_SYS_5V0 2520mW/2520mW NC 0mW/0mW VDDQ_VDD2_1V8AO 504mW/504mW"
)
ORIN_NO_LOAD = (
    "01-05-2024 08:00:01 RAM 3101/62841MB (lfb 1x2MB) SWAP 0/31420MB (cached 0MB) CPU [5%@2201,off] "
    "GR3D_FREQ @[1000,1000,1000] cpu@50.1C tboard@40.2C soc2@48C tj@50.1C VDD_IN 8044mW/7900mW "
    "VDD_CPU_GPU_CV 2400mW/2300mW VDD_SOC 2010mW/2000mW"
)
