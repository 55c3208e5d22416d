"""Read or make the data sets of workloads: CIFAR-100 and MNIST. No file of a data set is trusted to run code."""
