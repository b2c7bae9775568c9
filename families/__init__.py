"""Model families: descriptors, tensor roles, the registry and its plugins; one folder a family."""
