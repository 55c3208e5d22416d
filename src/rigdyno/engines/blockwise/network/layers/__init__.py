"""What a network is made of, one file each: what it needs to know of its input, and how it is computed on a part."""
