"""Facts of devices, and GPU profiles made of them."""
