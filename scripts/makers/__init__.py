"""Programs for maintainers that make tables and assets of the packages. No command uses them."""
