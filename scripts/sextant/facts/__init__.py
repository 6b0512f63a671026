"""GPUs and GPU profiles.

In: a device type's facts, `resources/gpus/<gpu_id>.yaml`, and rows of `gpu_profiles.tsv`. Out:
`GPU` (with the rate of its products by precision), `GPUProfile` (n devices of one type that serve
one replica, with a price) and `Devices` (what a measurement depends on). All of it is in
`gpu`; `mig` has the slices of a GPU.
"""
