"""Text generation on the command line: `chat`, `inspect` of a model's folder, `bench --llm`."""
