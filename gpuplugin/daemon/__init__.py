"""The loop: wake up, observe, plan, publish."""
