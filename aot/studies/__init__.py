"""What no build needs: the census, the SMEM calculator, the replay of searches, the calibration."""
