"""Programs for maintainers that generate tables and assets of the packages. No command uses them."""
