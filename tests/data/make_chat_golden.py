"""Writes tests/golden/chat/expected.jsonl: token ids and assistant masks of conversations, computed by transformers, for
conversation_test.cpp.

usage: make_chat_golden.py tests/golden/tokenizers FILE     (a Python with transformers)

The ids are for the full text. The masks come from {% generation %} blocks. "template" is the same template without
these blocks, which must lead to the same mask.
"""

import json
import pathlib
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|bos|>", "<|eot|>"]
TEMPLATES = [
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + '<|im_end|>\\n' }}{% endgeneration %}{% else %}{{ message.content + '<|im_end|>\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}{{ '<|im_start|>model\\n\\n' }}"
    "{% generation %}{{ message.content | trim + '<|eot|>' }}{% endgeneration %}{% else %}"
    "{{ '<|im_start|>' + message.role + '\\n\\n' + message.content | trim + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\\n\\n' }}{% endif %}"]
CONVERSATIONS = [
    [("user", "What is 2 + 2?"), ("assistant", "It is 4.")],
    [("system", "Be brief."), ("user", "Who is the king?"), ("assistant", "Richard."), ("user", "Since when, caf\u00e9 \U0001f600?"),
     ("assistant", "Since 1483; he's \u6f22\u5b57.")],
    [("user", "Only a question")],
    [("user", "a"), ("assistant", "    indented\n  code\n"), ("user", "b"), ("assistant", ""), ("user", "c")]]


def main():
    folder, file = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch, open(file, "w") as out:
        path = pathlib.Path(scratch) / "tokenizer.json"
        tokenizer = json.loads((pathlib.Path(folder) / "qwen2.json").read_text())
        for i, token in enumerate(SPECIAL):
            tokenizer["added_tokens"].append(dict(id=606 + i, content=token, single_word=False, lstrip=False, rstrip=False,
                                                  normalized=False, special=True))
        path.write_text(json.dumps(tokenizer))
        fast = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<|bos|>", eos_token="<|im_end|>")
        for template in TEMPLATES:
            plain = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
            for conversation in CONVERSATIONS:
                messages = [dict(role=role, content=content) for role, content in conversation]
                fast.chat_template = template
                found = fast.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
                out.write(json.dumps(dict(messages=messages, marked=template, template=plain, ids=found["input_ids"],
                                          mask=found["assistant_masks"])) + "\n")


if __name__ == "__main__":
    main()
