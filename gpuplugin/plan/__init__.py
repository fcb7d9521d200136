"""From (configuration, inventory, health) to what shall be published: pure, testable as tables."""
