"""What happens to a batch on its way, in order: plan, fetch, decode, reorder, deliver."""
