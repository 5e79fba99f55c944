"""Detect the types of files with magika, as its users do."""

import json

from magika import Magika

SAMPLES = {
    "python": b"import os\n\ndef main():\n    print(os.getcwd())\n\nif __name__ == '__main__':\n    main()\n" * 8,
    "json": b'{"name": "value", "list": [1, 2, 3], "nested": {"a": null}}\n' * 8,
    "markdown": b"# Title\n\nSome *text* with a [link](https://example.org).\n\n- one\n- two\n" * 8,
}

magika = Magika()
results = {name: magika.identify_bytes(data) for name, data in SAMPLES.items()}
print(json.dumps({name: [r.output.label, float(r.score)] for name, r in results.items()}))
