"""Writes tests/golden/jinja/expected.jsonl: templates, their variables, and the text that Jinja makes of them with the
settings of transformers, for jinja_test.cpp.

usage: make_jinja_golden.py FILE [TEMPLATE...]     (a Python with transformers)

With templates, writes conversations rendered by these files instead, to compare with published chat templates.
"""

import json
import pathlib
import sys

from transformers.utils import chat_template_utils

USER, SYSTEM = {"role": "user", "content": " What is 2 + 2?\n"}, {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "It is 4.  "}
MORE = [{"role": "user", "content": "And caf\u00e9 \U0001f600 <b>?"}, {"role": "assistant", "content": "\n\nYes, \"it\" is.\n"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a <tool>", "parameters": {
    "type": "object", "properties": {"x": {"type": "number", "enum": [1, 2.5, 1e20, None, True]}}, "required": ["x"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": {"x": 1, "y": "z\n"}}}]}
RESULT = {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "5"}
CONVERSATIONS = [
    [USER, ANSWER], [SYSTEM, USER, ANSWER], [SYSTEM, USER, ANSWER, *MORE], [USER], [USER, CALL, RESULT, ANSWER],
    [SYSTEM, USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 4."}, *MORE],
    [USER, {"role": "assistant", "reasoning_content": "hm", "content": "It is 4."}],
    [{"role": "user", "content": [{"type": "text", "text": "parts"}]}, ANSWER]]

# Written for this test, in the manner of the templates of ChatML, Llama 3, Mistral, Gemma, Qwen 3 and others.
CHAT_TEMPLATES = [
    """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
""",
    """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
<|start_header_id|>system<|end_header_id|>

Today: {{ date_string }}

{{ system_message }}<|eot_id|>
{%- if tools is not none and tools %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one call only") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ "}" }}
    {%- else %}
        {{- message.content | tojson if message.content is mapping or message.content is iterable else message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}""",
    """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages if message.role != 'tool' and 'tool_calls' not in message %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined or message == user_messages[-1] and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
""",
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' }}
{%- if message.content is string %}
{{ message.content | trim }}
{%- elif message.content is iterable %}
{%- for item in message.content %}{% if item.type == 'text' %}{{ item.text | trim }}{% endif %}{% endfor %}
{%- endif %}
{{ '<end_of_turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}
""",
    """{%- macro render(content, prefix='') %}
    {%- if content is string %}{{- prefix + content }}{%- elif content %}{%- for part in content %}{{- prefix ~ part.text }}{%- endfor %}{%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}{{- "\n<|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = render(message.content) %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {{- '<|im_start|>' + message.role }}
        {% generation %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- ('\n' if loop.first and content or not loop.first else '') + '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}{% else %}{{- call.function.arguments | tojson }}{% endif %}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}{% endgeneration %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""]

DATA = {"a": 1, "b": 2.0, "s": "H\u00e9llo w\u00f6rld", "t": "  x y  z\n", "l": [3, 1, 2], "w": ["b", "A", "a", "c"],
        "m": {"k": "v", "items": 3, "n": None, "q": "it's \"q\""}, "no": [], "none": None, "yes": True,
        "people": [{"name": "Al", "age": 3, "x": {"y": 1}}, {"name": "bo", "age": 1}, {"name": "Cy", "age": 2, "x": {"y": 2}}]}
EXPRESSIONS = """a + b * 2 - 7 // 2 % 3 ** 2|-a ** 2|7 // -2|-7 % 3|7 / 2|2 ** 10|2 ** -1|7.5 // 2|-7.5 % 2|1_000 + 1|0.1 + 0.2|1e20 * 0 + a
a < b <= 2 < 3|a == 1.0 and yes == 1|not a == 2|none is none|x is defined|x is not defined|x|x or 'y'|a if b > 1 else 'no'|a if b > 5|'z' if not l else l
s[0]|s[-1]|s[1:4]|s[::-1]|s[:-2]|s[10:2:-2]|l[5]|l[-1]|l[0:2]|l[::2]|l[-2:]|m.k|m['k']|m.missing|m['missing']|m.items()|list|m.get('k')|m.get('z', 5)|m.keys()|list|m.values()|list
t.strip()|t.lstrip()|t.rstrip()|t.split()|t.split(' ')|t.split(none, 1)|'a,b,,c'.split(',', 2)|'a,b,,c'.rsplit(',', 1)|s.upper()|s.lower()|'hello wORLD'.title()|'hELLO'.capitalize()
s.startswith('H')|s.endswith(('x', 'd'))|s.find('w')|s.find('q')|s.rfind('l')|s.count('l')|s.replace('l', 'L')|s.replace('l', 'L', 1)|s.replace('', '-')|'-'.join(w)|'abc'.removeprefix('a')|'abc'.removesuffix('bc')|'12'.isdigit()|'a\\nb\\r\\nc'.splitlines()|'xxaxx'.strip('x')|'ab' in 'cabd'
'%' ~ a ~ b ~ none ~ yes ~ l ~ m|[1, 'a', none, true, 1.5, {'k': [2]}]|(1, 2)[1]|{'a': 1, 'b': {'c': s}}|['it\\'s', "d\\"q", 'b\\\\', '\\t\\u00e9\\x41']|'a' 'b'|[] + l|l * 2|'ab' * 3
l|sort|l|sort(reverse=true)|w|sort|w|sort(case_sensitive=true)|people|sort(attribute='age')|map(attribute='name')|join(', ')|w|unique|list|l|reverse|list|s|reverse|l|first|l|last|no|first|l|sum|l|max|l|min|w|join|w|map('upper')|list|l|length|s|length|s|count|m|length|no|length
people|selectattr('x')|list|length|people|selectattr('x', 'defined')|map(attribute='x.y')|list|people|rejectattr('name', 'equalto', 'bo')|map(attribute='age')|list|people|selectattr('age', 'gt', 1)|map(attribute='name')|list|l|select('odd')|list|l|reject('odd')|list|people|map(attribute='x', default='-')|list
t|trim|'xax'|trim('x')|s|upper|s|lower|'a b'|title|'aB'|capitalize|s|replace('o', '0')|x|default('dd')|''|default('dd')|''|default('dd', true)|none|d('q', boolean=true)|'7'|int|'x'|int(5)|'2.5'|float|2.7|int|2.567|round(2)|-3|abs|a|string|'a\\nb'|indent(2)|'a\\n\\nb'|indent('> ', true)|l|string
m|tojson|m|tojson(indent=2)|people|tojson(indent=None)|s|tojson|'a\\n"\\\\/<&\\x7f\\x01'|tojson|[1e20, 1.0, 1e-7, true, none]|tojson|{'b': 1, 'a': 2}|tojson(sort_keys=true)|{}|tojson|[]|tojson(indent=1)|m|items|list|m|dictsort|{'b': 1, 'A': 2}|dictsort|{'b': 1, 'A': 2}|list
a is number|s is string|l is iterable|m is mapping|l is sequence|m is sequence|yes is boolean|a is boolean|yes is true|a is integer|b is float|4 is divisibleby 2|4 is even|a is odd|a is in [1, 2]|'q' is in s|a is eq 1|a is ne 1|a is not none and b is number|range is callable|s is lower|'AB' is upper|none is false
range(5)|list|range(2, 8, 3)|list|range(3, 0, -1)|list|range(0)|list|namespace(a=1).a|dict(a=1, b='c')|dict(m, k=5).k|1 if x else 2 if a else 3|(a, b)|not not a|not a in l|a not in l|1 in l == true|-l[0]|+a|l[a]|l[a + 1]|people[0].x.y|people[1].x is defined|people[0]['name'][0]|s.split('o')[0].strip()|"{{"|'}}'""".split("\n")
BLOCKS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% else %}none{% endfor %}",
    "{% for x in no %}{{ x }}{% else %}none{% endfor %}", "{% for k, v in m.items() %}{{ k }}={{ v }} {% endfor %}",
    "{% for k in m %}{{ k }} {% endfor %}{% for c in s %}{{ c }}.{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}{{ x }} {% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}", "{% set a, b = [5, 6] %}{{ a }}{{ b }}",
    "{% set ns = namespace(n=0) %}{% for y in l %}{% set ns.n = ns.n + y %}{% endfor %}{{ ns.n }}",
    "{% set x %}a{{ b }}c{% endset %}[{{ x }}]", "{% macro m(a, b='d') %}({{ a }}{{ b }}{{ s }}){% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}{{ m(1, 2) | length }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% if a == 2 %}x{% elif a == 1 %}y{% else %}z{% endif %}{% if x %}1{% elif y %}2{% else %}3{% endif %}",
    "  {% if a %}  \n  x  \n  {% endif %}  \n  y\n", "a  {%- if a -%}  \n b \n {%- endif -%}  c", "a\n  {#- c -#}\n b {# d #}\n c\n\n",
    "a\n    {%+ if a %}\nb\n    {%+ endif +%}\nc", "{{ a }}\n{{ b }}\n\n", "x {{- a -}} y {{ a -}}\n z", "a\r\n{% if a %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "\n{% if a %}\n\n{{ a }}{% endif %}{# #}\n\n", "{% for p in people %}{% for q in p.name %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% if a %}{% set z = 3 %}{% endif %}{{ z }}", "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'x': 1} }}", "{{ '{%' }}{{ \"%}\" }}{ { } } {",
    "x{% generation %}a{{ a }}{% endgeneration %}y{%- generation %} \u00e9 {%- endgeneration -%} z", "{{ a, b }}",
    "{% for x in l %}{% set y %}a{{ x }}{% if x == 2 %}{% break %}{% endif %}b{% endset %}{{ y }};{% endfor %}",
    "{% set y = 'c' %}{% for x in l %}[{% set y %}a{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endset %}{{ y }}]{% endfor %}{{ y }}",
    "{% for x in l %}{% set y %}{% for z in l %}{{ z }}{% if z == x %}{% break %}{% endif %}{% endfor %}{% endset %}{{ y }};{% endfor %}"]
ERRORS = [
    "{{ x.y }}", "{{ x[0] }}", "{{ x + 1 }}", "{{ a + s }}", "{{ s + none }}", "{{ nothing() }}", "{{ s.nothing() }}", "{{ s | nothing }}",
    "{{ s is nothing }}", "{{ a < s }}", "{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ l.append(4) }}", "{% set a.b = 1 %}", "{{ a | length }}",
    "{% for x in a %}{% endfor %}", "{% if %}{% endif %}", "{% if a %}", "{% endif %}", "{{ a", "{{ 'a }}", "{# a", "{{ a ! b }}", "{{ (a }}",
    "{% for x l %}{% endfor %}", "{% for x in l %}{% else %}", "{% break %}", "{% set a, b = l %}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{{ '-'.join(l) }}", "{{ [1][ }}", "{{ a b }}", "{% macro m %}{% endmacro %}", "{{ range(200000) | list }}"]


def environment():
    return chat_template_utils._compile_jinja_template("").environment


def render(source, variables):
    template = chat_template_utils._compile_jinja_template(source)
    template.environment.globals.pop("strftime_now", None)  # not offered: results would depend on the day
    blocks, spans = [], []
    with template.environment.activate_tracker(blocks, spans):
        for block in template.generate(**variables):
            blocks.append(block)
    return "".join(blocks), spans


def case(source, variables, number, name=None):
    """Returns the expected result. `number` is the index of `variables` in the first line of the file."""
    result = {"file" if name else "template": name or source, "variables": number}
    try:
        # Jinja computes spans in the text without the output buffered before a block; they are compared as texts.
        text, spans = render(source, variables)
        result |= {"text": text, "generated": [text[begin:end] for begin, end in spans]}
    except Exception as error:
        result |= {"error": f"{type(error).__name__}: {error}"}
    return result


def chat_variables():
    for conversation in CONVERSATIONS:
        for tools in [None, TOOLS]:
            for prompt in [False, True]:
                yield dict(messages=conversation, tools=tools, documents=None, add_generation_prompt=prompt, bos_token="<s>",
                           eos_token="</s>")


def main():
    chats = list(chat_variables())
    with open(sys.argv[1], "w") as out:
        def write(found, wanted=None):
            assert wanted is None or wanted in found, found
            out.write(json.dumps(found) + "\n")
        write({"variables": [DATA, *chats]})
        for file in sys.argv[2:]:
            for number, variables in enumerate(chats, 1):
                write(case(pathlib.Path(file).read_text(), variables, number, file))
        if sys.argv[2:]:
            return
        for expression in (e for line in EXPRESSIONS for e in split_expressions(line)):
            write(case("{{ " + expression + " }}", DATA, 0), "text")
        for block in BLOCKS:
            write(case(block, DATA, 0), "text")
        for block in ERRORS:
            write(case(block, DATA, 0), "error")
        for template in CHAT_TEMPLATES:
            for number, variables in enumerate(chats, 1):
                write(case(template, variables, number))


def split_expressions(line):
    """Splits a line of EXPRESSIONS at each | that no filter follows."""
    filters = set(environment().filters)
    parts = line.split("|")
    result = [parts[0]]
    for part in parts[1:]:
        name = part.split("(")[0]
        if name in filters:
            result[-1] += "|" + part
        else:
            result.append(part)
    return result


if __name__ == "__main__":
    main()
