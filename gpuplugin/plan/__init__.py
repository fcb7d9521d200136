"""From (configuration, inventory, health) to what shall be published: pure, so that every decision can be tested as a table."""
