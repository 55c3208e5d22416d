"""The keys of run specifications, by which runs are resumed, compared and matched.

A key that changes makes stored runs incomparable with new ones. Raise the version of a workload instead.
"""

import pytest
from scripted_rig import compute_key

KEYS = [
    ({"workload": "tensor_add"}, "c5f15698e1f29bd7"),
    ({"workload": "tensor_add", "options": {"variant": "corrected"}}, "5788ef48b58d1116"),
    ({"workload": "tensor_add", "options": {"variant": "corrected", "size": 4096}}, "5c1ec36e7df632eb"),
    ({"workload": "tensor_add", "defaults": {"variant": "corrected", "size": 4096}}, "5c1ec36e7df632eb"),
    ({"workload": "tensor_add", "options": {"size": 4096.0}}, "c86c15fcc35e9512"),
    ({"workload": "tensor_add", "options": {"size": "4096"}}, "5c133dbfdd75d723"),
    ({"workload": "tensor_add", "device": "cuda"}, "0f0213c177b6eb34"),
    ({"workload": "tensor_add", "device": "cuda:1"}, "0f0213c177b6eb34"),
    ({"workload": "tensor_add", "device": "mps"}, "af919c5ec8331f4d"),
    ({"workload": "tensor_add", "threads": 1}, "fb7591b21a6408e5"),
    (
        {"workload": "tensor_add", "pinned": True, "seed": 7, "python": "/other/bin/python", "launcher": "inline"},
        "c5f15698e1f29bd7",
    ),
    ({"workload": "tensor_add", "budget": {"seconds": 60.0, "max_steps": 100}}, "c5f15698e1f29bd7"),
    ({"workload": "tensor_add", "budget": {"seconds": 600.0, "stop": "clock"}}, "59893d12a6710607"),
    ({"workload": "matmul_peak", "options": {"dtype": "float32"}}, "bdd01f61047df6d4"),
    ({"workload": "matmul_peak", "options": {"dtype": "bfloat16"}}, "65295c30aaa81fc5"),
    ({"workload": "matmul_peak", "options": {"dtype": "float16"}, "device": "cuda"}, "6f955251a9cb45c7"),
    ({"workload": "memory_bandwidth", "defaults": {"working_set": "auto"}}, "fe1af9a4f3f4ef9e"),
    ({"workload": "launch_latency", "options": {"launches": 100}}, "ce759ad0888514e8"),
    (
        {
            "workload": "resnet50",
            "options": {"batch_size": 8, "image_size": 64, "learning_rate": 0.01},
            "threads": 1,
            "pinned": True,
        },
        "3ac0b396cb6e6c58",
    ),
    ({"workload": "resnet50", "arrangement": "ddp", "launcher": "torchrun", "world_size": 2}, "c53fc516c66d13b2"),
    (
        {"workload": "resnet50", "arrangement": "ddp", "launcher": "ssh", "world_size": 8, "nodes": 4},
        "433db0ca0de9c3cd",
    ),
    ({"workload": "resnet50", "arrangement": "data_parallel", "world_size": 4, "device": "cuda"}, "837b74e0f72020fd"),
    (
        {"workload": "allreduce", "arrangement": "ddp", "launcher": "slurm", "world_size": 2, "nodes": 2},
        "f662b691b000e491",
    ),
    (
        {
            "workload": "mnist_cnn",
            "options": {"learning_rate": 0.02, "data": "fashion"},
            "arrangement": "horovod",
            "launcher": "horovodrun",
            "world_size": 2,
            "budget": {"seconds": 4.5, "job_steps": 300},
        },
        "f681bc9c3abda043",
    ),
    (
        {
            "workload": "mnist_cnn_tensorflow",
            "options": {"rate_factor": 2.0},
            "arrangement": "multiworker",
            "launcher": "tf_config",
            "world_size": 2,
            "budget": {"job_steps": 300},
        },
        "5b21a8a8bc1025a4",
    ),
    ({"workload": "mnist_cnn", "largest": {"batch_size": 1000000000}}, "5913766c26a5aa59"),
    (
        {"workload": "mnist_cnn", "largest": {"batch_size": 1000000000}, "options": {"batch_size": 640}, "share": 0.5},
        "0f9c7e1d4e7efce9",
    ),
    (
        {
            "workload": "efficientnet_cifar100",
            "options": {"norm": "group", "update.noise_multiplier": 1.0, "update.group_norm": True},
            "update": "dp_fast",
            "largest": {"batch_size": 8000000000},
            "budget": {"job_items": 50000},
        },
        "7394c3cb1346eabd",
    ),
    (
        {
            "workload": "efficientnet_cifar100",
            "options": {"norm": "group", "update.mode": "functorch"},
            "update": "dp_opacus",
        },
        "59b8e4fb16b2f52a",
    ),
    (
        {
            "workload": "dp_audit",
            "options": {"update": "dp_fast", "runs": 300},
            "threads": 1,
            "budget": {"seconds": 15.0, "job_steps": 1},
        },
        "0e9d0115ad0c9f5f",
    ),
    ({"workload": "unet3d", "options": {"network": "isotropic", "patch": "16x48x48"}}, "259ad4179b2d3880"),
    (
        {
            "workload": "unet3d_inference",
            "options": {"scheme": "own", "block": "10x108x108", "halo": "1x6x6"},
            "threads": 2,
        },
        "a332614351f2b0aa",
    ),
    ({"workload": "train.py:step", "options": {"unit": "image", "lr": 0.1, "fused": False}}, "b03bb985d00048c4"),
    ({"workload": "my training", "launcher": "own_loop"}, "35adb0c975a4a513"),
]


@pytest.mark.parametrize(("spec", "key"), KEYS)
def test_key_of_a_specification_is_unchanged(spec, key):
    assert compute_key(spec) == key


def test_seed_length_and_start_do_not_change_the_key():
    plain = {"workload": "tensor_add"}
    how = {"seed": 7, "launcher": "inline", "pinned": True, "python": "/usr/bin/python3", "budget": {"seconds": 99.0}}
    assert compute_key({**plain, **how}) == compute_key(plain)
