"""A tuning: its request, its bundle, and the device that it runs on."""
