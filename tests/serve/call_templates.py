"""Chat templates with the call syntax of known families of models, and tiny models with these templates.

The parts of the templates about functions equal the originals; the instructions are shortened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.genai.tiny_decoders import SPECIAL, Sizes, write_model

_QWEN_TOOLS: Final = (
    "{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\\n</tools>\\nA call is a JSON object within <tool_call></tool_call>:\\n<tool_call>\\n"
    '{"name": <function-name>, "arguments": <args-json-object>}'
    "\\n</tool_call><|im_end|>\\n' }}{%- endif %}"
)
_QWEN_RESULT: Final = (
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
)
_QWEN_PROMPT: Final = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

QWEN_2_5: Final = (
    _QWEN_TOOLS + "{%- for message in messages %}"
    "{%- if message.role == 'user' or message.role == 'system' or "
    "(message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}"
    "{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}"
    "{%- for tool_call in message.tool_calls %}"
    "{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}'
    "{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' %}" + _QWEN_RESULT + "{%- endif %}{%- endfor %}" + _QWEN_PROMPT
)
QWEN_3: Final = (
    _QWEN_TOOLS + "{%- set ns = namespace(last=0) %}"
    "{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}{%- for message in messages %}"
    "{%- if message.role == 'user' or message.role == 'system' %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}"
    "{%- if loop.last and loop.index0 > ns.last %}"
    "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + message.content }}"
    "{%- else %}{{- '<|im_start|>assistant\\n' + message.content }}{%- endif %}"
    "{%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}"
    "{%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}"
    "{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}"
    '{{- \'<tool_call>\\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}'
    "{%- if tool_call.arguments is string %}{{- tool_call.arguments }}"
    "{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' %}" + _QWEN_RESULT + "{%- endif %}{%- endfor %}" + _QWEN_PROMPT
)
LLAMA_3_1: Final = (
    "{%- if tools %}{{- '<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}"
    "{{- '<|eot_id|>' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (message.role == 'ipython' or message.role == 'tool' or message.tool_calls) %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"
    "{%- elif message.tool_calls %}"
    "{%- if not message.tool_calls | length == 1 %}"
    "{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}"
    "{%- set tool_call = message.tool_calls[0].function %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}"
    "{{- '{\"name\": \"' + tool_call.name + '\", ' }}{{- '\"parameters\": ' }}{{- tool_call.arguments | tojson }}"
    "{{- '}' }}{{- '<|eot_id|>' }}"
    "{%- elif message.role == 'tool' or message.role == 'ipython' %}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{{- message.content | tojson }}{{- '<|eot_id|>' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
MISTRAL: Final = (
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{%- set ns = namespace(index=0) %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "{%- if (message.role == 'user') != (ns.index % 2 == 0) %}"
    "{{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{%- endif %}"
    "{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}"
    "{%- if tools and message == users[-1] %}{{- '[AVAILABLE_TOOLS] [' }}"
    "{%- for tool in tools %}{{- tool | tojson }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}"
    "{{- '][/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST] ' + message.content + '[/INST]' }}"
    "{%- elif message.tool_calls %}{{- '[TOOL_CALLS] [' }}"
    "{%- for tool_call in message.tool_calls %}"
    "{%- set out = tool_call.function | tojson %}{{- out[:-1] }}"
    "{%- if tool_call.id is not defined or tool_call.id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    "{{- ', \"id\": \"' + tool_call.id + '\"}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']</s>' }}{%- endif %}{%- endfor %}"
    "{%- elif message.role == 'assistant' %}{{- ' ' + message.content + '</s>' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    '{{- \'[TOOL_RESULTS] {"content": \' + message.content + \', "call_id": "\' + message.tool_call_id'
    " + '\"}[/TOOL_RESULTS]' }}"
    "{%- endif %}{%- endfor %}"
)

# Template, and the texts of the four special tokens of a tiny model: padding, end of an answer, two more.
TEMPLATES: Final[Mapping[str, tuple[str, tuple[str, str, str, str]]]] = {
    "qwen2.5": (QWEN_2_5, ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<tool_call>")),
    "qwen3": (QWEN_3, ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<tool_call>")),
    "llama3.1": (LLAMA_3_1, ("<|pad|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")),
    "mistral": (MISTRAL, ("<unk>", "</s>", "[INST]", "[TOOL_CALLS]")),
}
# Special tokens that remain in decoded texts.
_PLAIN: Final = ("<tool_call>",)


def write_calling_model(folder: Path, name: str, *, end: float = 0.0) -> Path:
    """Write a tiny model with random weights and a template of `TEMPLATES`.

    Args:
        end: value added to the logit of the end token: a lower value gives an answer with more calls.
    """
    template, texts = TEMPLATES[name]
    write_model(folder, "dynamic", sizes=Sizes(context=8000, special=(-50.0, end, 0.0, 0.0)))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    renamed = dict(zip(SPECIAL, texts, strict=True))
    for token in tokenizer["added_tokens"]:
        token["content"] = renamed[token["content"]]
        token["special"] = token["content"] not in _PLAIN
    tokenizer["model"]["vocab"] = {renamed.get(text, text): at for text, at in tokenizer["model"]["vocab"].items()}
    path.write_text(json.dumps(tokenizer), "utf-8")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    settings |= {key: renamed[value] for key, value in settings.items() if key.endswith("_token")}
    path.write_text(json.dumps({**settings, "chat_template": template}), "utf-8")
    return folder
