"""Looking at the machine: NVML, sysfs, the driver's files, and what tells that something changed."""
