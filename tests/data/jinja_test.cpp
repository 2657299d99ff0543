// Templates in the language Jinja. make_jinja_golden.py generated the expected texts with transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/json.h"
#include "base/strings.h"
#include "data/jinja/interpreter.h"
#include "tests/data/data_golden.h"

namespace mcpp::jinja {
namespace {

using test::input_error;
using testing::HasSubstr;

/// Renders a case of a golden file. Returns the text, with the generated parts as a list, or the error.
OrderedJson result_of(const OrderedJson& golden, const Value& variables) {
  const bool is_file = golden.contains("file");
  const std::string source =
      is_file ? read_text_file(golden["file"].get<std::string>()) : golden["template"].get<std::string>();
  try {
    const Rendering rendering = Template(source, "template").render(variables.dict());
    std::vector<std::string> parts;
    for (const auto& [begin, end] : rendering.generated) parts.push_back(rendering.text.substr(begin, end - begin));
    return {{"text", rendering.text}, {"generated", parts}};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput) << error.what();
    return {{"error", error.what()}};
  }
}

/// Compares with a golden file. Returns the number of cases.
i64 compare_with(const Path& file) {
  std::vector<Value> variables;
  i64 cases = 0;
  for (const std::string& line : split(read_text_file(file), '\n')) {
    if (line.empty()) continue;
    const OrderedJson golden = OrderedJson::parse(line);
    if (!golden.contains("template") && !golden.contains("file")) {
      for (const OrderedJson& one : golden["variables"]) variables.push_back(Value::of_json(one));
      continue;
    }
    const OrderedJson found = result_of(golden, variables.at(golden["variables"].get<std::size_t>()));
    const std::string where = golden.contains("file") ? golden["file"].dump() : golden["template"].dump();
    EXPECT_EQ(found.contains("error"), golden.contains("error")) << where << "\n"
                                                                 << found.dump() << "\n"
                                                                 << golden.dump();
    if (golden.contains("text")) {
      EXPECT_EQ(found.value("text", ""), golden["text"].get<std::string>()) << where;
      EXPECT_EQ(found["generated"], golden["generated"]) << where;
    }
    ++cases;
  }
  return cases;
}

TEST(JinjaTest, RendersLikeReferenceLibrary) {
  EXPECT_GT(compare_with(test::golden_folder() / "jinja/expected.jsonl"), 400);
}

/// JINJA_GOLDEN=FILE compares with a file of make_jinja_golden.py for published templates.
TEST(JinjaTest, RendersGivenTemplatesLikeReferenceLibrary) {
  const char* file = std::getenv("JINJA_GOLDEN");
  if (!file) GTEST_SKIP() << "JINJA_GOLDEN is not set";
  EXPECT_GT(compare_with(file), 0);
}

std::string render(const std::string& source, const Dict& variables = {}) {
  return Template(source, "t.jinja").render(variables).text;
}

TEST(JinjaTest, MarksGeneratedText) {
  const Rendering found =
      Template("a{% generation %}b\n{% endgeneration %}c{% generation %}{% endgeneration %}", "t").render({});
  EXPECT_EQ(found.text, "ab\nc");
  EXPECT_THAT(found.generated, testing::ElementsAre(std::pair(1U, 3U), std::pair(4U, 4U)));
  EXPECT_TRUE(Template("{% if x %}{% generation %}{% endgeneration %}{% endif %}", "t").marks_generation());
  EXPECT_FALSE(Template("{# {% generation %} #}", "t").marks_generation());
}

TEST(JinjaTest, LeavesLoopInsideGeneration) {
  const Rendering found = Template(
                              "{% for x in [1, 2, 3] %}{% generation %}{{ x }}{% if x == 2 %}{% break %}{% endif %},"
                              "{% endgeneration %};{% endfor %}",
                              "t")
                              .render({});
  EXPECT_EQ(found.text, "1,;2");
  EXPECT_THAT(found.generated, testing::ElementsAre(std::pair(0U, 2U), std::pair(3U, 4U)));
}

TEST(JinjaTest, RejectsGenerationWhoseTextIsNotInPlace) {
  const std::string inner = "{% if 1 %}{% generation %}b{% endgeneration %}{% endif %}";
  const std::pair<std::string, const char*> cases[]{
      {"{% generation %}a" + inner + "{% endgeneration %}", "a generation block inside a generation block"},
      {"{% macro m() %}" + inner + "{% endmacro %}{{ m() }}", "a generation block inside a macro"},
      {"{% set x %}" + inner + "{% endset %}{{ x }}", "a generation block inside a set block"}};
  for (const auto& [source, message] : cases)
    EXPECT_THAT(input_error([&, text = source] { render(text); }), HasSubstr(message)) << source;
  EXPECT_EQ(
      render("{% set x %}a{% endset %}{% generation %}{% set y %}b{% endset %}{{ x + y }}{% endgeneration %}" + inner),
      "abb");
}

TEST(JinjaTest, WritesInfinityAndNanAsJson) {
  EXPECT_EQ(render("{% set x = 1e308 * 10 %}{{ [x, -x, x - x] | tojson }}"), "[Infinity, -Infinity, NaN]");
  EXPECT_EQ(render("{% set x = 1e308 * 10 %}{{ [x, -x, x - x] }}"), "[inf, -inf, nan]");
}

TEST(JinjaTest, ErrorsNameTemplateAndLine) {
  const std::pair<const char*, const char*> cases[]{
      {"a\n{{ x.y }}", "t.jinja: line 2: 'x' is undefined"},
      {"\n\n{% include 'x' %}", "t.jinja: line 3: the statement 'include' is not supported; supported are if, for"},
      {"{{ 'a' | nothing }}", "t.jinja: line 1: the filter 'nothing' is not supported; supported are abs, "},
      {"{{ 'a' is nothing }}", "the test 'nothing' is not supported"},
      {"{{ 'a'.center(3) }}", "the method 'center' of a str is not supported"},
      {"{{ strftime_now('%d') }}", "the function 'strftime_now' is not supported; supported are dict, "},
      {"{{ raise_exception('roles must alternate') }}", "the template rejects the conversation: roles must alternate"},
      {"{{ 'a }}", "t.jinja: line 1: the string has no closing '"},
      {"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{% for x in [1] %}{% macro m() %}{% endmacro %}{% endfor %}", "a macro inside a loop or a macro"},
      {"{{ 1 + }}", "expected a value, found the end of the tag"},
      {"{% if x %}", "expected {% endif %}, found the end of the template"},
      {"{{ 'x' * 1000000 }}", "a sequence becomes longer"},
      {"{{ 'ab' * 9223372036854775807 }}", "a sequence becomes longer"},
      {"{{ [1, 2] * 4611686018427387905 }}", "a sequence becomes longer"},
      {"{{ namespace(a=1) | tojson }}", "tojson: a namespace is not JSON"},
      {"{{ 'a\u00e9' | title }}", "text that is not ASCII is not supported"}};
  for (const auto& [source, message] : cases)
    EXPECT_THAT(input_error([&, text = source] { render(text); }), HasSubstr(message)) << source;
}

/// Every operation on large values spends the budget, so that a loop over it is stopped.
TEST(JinjaTest, StopsLoopOverEveryOperationOnLargeValues) {
  constexpr i64 kBudget = 20'000'000;
  constexpr const char* kTextOperations =
      "t + t; t ~ l; t | upper; t | lower; t | trim; t.strip(t); t | replace('a', 'bc'); t.split(); t.split(' '); "
      "t.rsplit('zz'); t.splitlines(); t | list; t[1:]; t[-1]; t | indent(4); t.find('c'); t.rfind('c'); t.count('a'); "
      "t | length; 'c' in t; t == t + 'a'; t is upper; t | unique; t | sort; t | first; t | reverse; t.join(['a', "
      "'b']); "
      "t * 3";
  constexpr const char* kListOperations =
      "r | join(','); r | sum; r | sort; r | list; r + r; r[1:]; r | map('string'); r | select('odd'); r | max; "
      "r | reverse; r | last; 9999 in r; r.index(8999); r == r + [1]; l | string; l | tojson; l == l + [1]; l < l; "
      "l | join; d | tojson; d == dict(a=l, b=t); range(90000); l * 900";
  const std::string start =
      "{% set n = namespace(t='ab ' * 9000, l=[]) %}{% for a in range(12) %}{% set n.l = n.l + [[n.l, 'x']] %}{% "
      "endfor "
      "%}{% set t = n.t %}{% set l = n.l %}{% set r = range(9000) %}{% set d = dict(a=l, b=t) %}";
  const std::string loop = "{% for a in range(900) %}{% for b in range(900) %}", end = "{% endfor %}{% endfor %}";
  const auto error = [](const std::string& source) {
    return input_error([&] { Template(source, "t").render({}, kBudget); });
  };
  for (const std::string& operation : split(str(kTextOperations, "; ", kListOperations), ';')) {
    const std::string statement = "{% set x = " + operation + " %}";
    EXPECT_EQ(error(start + statement), "") << operation;
    EXPECT_THAT(error(start + loop + statement + end), HasSubstr("the template runs too long")) << operation;
  }
  EXPECT_THAT(error("{% set n = namespace() %}" + loop + "{{ n.x }}" + end), HasSubstr("the template runs too long"));
}

TEST(JinjaTest, RendersConversationOfManyMebibytes) {
  Dict message, variables;
  message.set("role", "user");
  message.set("content", std::string(std::size_t{8} << 10, 'a'));
  variables.set("messages", List(1000, Value(message)));
  const std::string source =
      "{% for m in messages %}{% if m.role == 'user' and '<x>' not in m.content and not loop.last %}"
      "{% set c = m.content.split('</think>')[-1].lstrip('\n') %}<{{ m.role }}>{{ c | trim }}\n{% else %}"
      "{{ m['content'] | replace('a', 'b') }}{% endif %}{% endfor %}{{ messages | length }}";
  EXPECT_EQ(render(source, variables).size(), 999 * (8192 + 7) + 8192 + 4);
}

TEST(JinjaTest, BoundsTimeAndMemoryOfHostileTemplates) {
  const auto fails = [](const std::string& source) { return !input_error([&] { render(source); }).empty(); };
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_TRUE(fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"));
  EXPECT_TRUE(fails("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"));
  EXPECT_TRUE(fails("{% set n = namespace(s='xx') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}"));
  EXPECT_TRUE(fails("{% set n = namespace(s=[1]) %}{% for a in range(9999) %}{% set n.s = [n.s] %}{% endfor %}"));
  EXPECT_TRUE(fails("{% set n = namespace(s=[1]) %}{% for a in range(9999) %}{% set n.s = n.s + n.s %}{% endfor %}"));
  for (const std::string use : {"{{ n.s }}", "{{ n.s | tojson }}", "{{ n.s == n.t }}", "{{ n.s < n.t }}"}) {
    EXPECT_THAT(input_error([&] {
                  render(
                      "{% set n = namespace(s=[], t=[]) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}"
                      "{% set n.t = [n.t, n.t] %}{% endfor %}" +
                      use);
                }),
                HasSubstr("a list becomes larger than"));
    EXPECT_EQ(input_error([&] {
                render(
                    "{% set n = namespace(s=[], t=[]) %}{% for a in range(9) %}{% set n.s = [n.s, n.s] %}"
                    "{% set n.t = [n.t, n.t] %}{% endfor %}" +
                    use);
              }),
              "");
  }
  EXPECT_THAT(input_error([] {
                render(
                    "{% set n = namespace(s={}) %}{% for a in range(60) %}{% set n.s = {'a': n.s, 'b': n.s} %}"
                    "{% endfor %}{{ n.s | tojson }}");
              }),
              HasSubstr("a dictionary becomes larger than"));
  EXPECT_TRUE(fails("{% set n = namespace() %}{% set n.s = [n, n] %}{{ n.s | tojson }}"));
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.s = [n, n] %}{{ n.s }}"), "[<Namespace>, <Namespace>]");
  EXPECT_EQ(render("{% set n = namespace(next=none) %}{% for a in range(99999) %}{% set m = namespace() %}"
                   "{% set m.next = n.next %}{% set n.next = m %}{% endfor %}{{ n }}"),
            "<Namespace>");
  EXPECT_TRUE(fails("{{ " + repeated("(", 100000) + " }}"));
  EXPECT_TRUE(fails("{{ " + repeated("not ", 100000) + "1 }}"));
  EXPECT_TRUE(fails("{{ " + repeated("-", 100000) + "1 }}"));
  EXPECT_TRUE(fails("{{ 1" + repeated("+1", 100000) + " }}"));
  EXPECT_TRUE(fails("{{ x" + repeated("[0]", 100000) + " }}"));
  EXPECT_TRUE(fails("{{ 1" + repeated(" if 1 else 1", 100000) + " }}"));
  EXPECT_TRUE(fails(repeated("{% if 1 %}", 100000)));
  EXPECT_TRUE(fails("{% if 1 %}" + repeated("{% elif 1 %}", 100000) + "{% endif %}"));
  EXPECT_TRUE(fails("{{ 9223372036854775807 + 1 }}"));
  EXPECT_TRUE(fails("{{ 99999999999999999999 }}"));
  EXPECT_TRUE(fails("{{ -9223372036854775807 - 2 }}"));
  EXPECT_EQ(render("{{ (-9223372036854775807 - 1) // -1 if false else 'ok' }}"), "ok");
}

}  // namespace
}  // namespace mcpp::jinja
