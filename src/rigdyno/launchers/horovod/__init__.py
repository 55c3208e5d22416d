"""Start ranks with Horovod over Gloo or MPI, and find out whether it works here. For horovodrun.py alone."""
