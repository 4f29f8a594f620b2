"""The units of the simulated processor: each module registers the instruction forms that it executes."""
