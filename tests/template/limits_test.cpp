// Errors that name file and line, and templates that want too much.
#include <gtest/gtest.h>

#include "support.h"

namespace quatrain {
namespace {

using testing::Test;

void expect_error(std::string_view source, std::string_view text) {
  const std::string error = error_of(source);
  EXPECT_NE(error.find(text), std::string::npos)
      << "got: " << error << "\nwanted: " << text << "\nfrom: " << source.substr(0, 200);
}

std::string repeated(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(TemplateErrors, NameTheLine) {
  expect_error("a\nb\n{{ x.y }}", "t:3: 'x' is undefined");
  expect_error("{{\n\nx.y\n}}", "t:3: 'x' is undefined");
  expect_error("\n{% nope %}", "t:2: unknown tag 'nope'");
  expect_error("\n{{ x | nope }}", "t:2: the filter 'nope' is not known");
  expect_error("\n{{ x is nope }}", "t:2: the test 'nope' is not known");
  expect_error("{% if 1 %}\n{{ 'a' | nope }}{% endif %}", "t:2: the filter 'nope' is not known");
  expect_error("a\n{{ raise_exception('only user and assistant') }}", "t:2: only user and assistant");
  expect_error("{% macro m() %}\n{{ x.y }}\n{% endmacro %}\n{{ m() }}", "t:2: 'x' is undefined");
  expect_error("{% macro m() %}\n\n\n{% endmacro %}{{ m() ~ x.y }}", "t:4: 'x' is undefined");
  expect_error("\n{# open", "t:2: a comment is not closed");
  expect_error("\n\n{{ 'a", "t:3: a string is not closed");
  expect_error("{% if 1 %}\n\n", "{% endif %}");
}

TEST(TemplateErrors, NameWhatIsNotSupported) {
  expect_error("{% include 'x' %}", "{% include %} is not supported");
  expect_error("{% extends 'x' %}", "{% extends %} is not supported");
  expect_error("{% for x in [] recursive %}{% endfor %}", "recursive loops are not supported");
  expect_error("{{ [1].append(2) }}", "may not change values in place");
  expect_error("{{ {}.update({}) }}", "may not change values in place");
  expect_error("{{ 'a'.encode() }}", "attribute 'encode' of 'str' is not supported");
  expect_error("{{ ''.__class__.__mro__ }}", "unsafe");
  expect_error("{{ 9223372036854775807 + 1 }}", "does not fit 64 bits");
  expect_error("{{ 9223372036854775808 }}", "does not fit 64 bits");
  expect_error("{{ 3 ** 50 }}", "does not fit 64 bits");
  expect_error("{{ 'x'.upper }}", "cannot be printed");
}

TEST(TemplateErrors, OfTheContext) {
  EXPECT_THROW(render("x", OrderedJson::array()), Error);
  EXPECT_NE(error_of("{{ n }}", OrderedJson{{"n", 18446744073709551615u}}).find("does not fit 64 bits"),
            std::string::npos);
}

TEST(TemplateLimits, StringsAndLists) {
  expect_error("{{ 'a' * 10000000000 }}", "string of more than");
  expect_error("{{ 'abc' * 9223372036854775807 }}", "too large");
  expect_error("{{ [1] * 10000000000 }}", "list of more than");
  expect_error("{{ range(10000000000) }}", "Range too big");
  expect_error("{{ range(-9223372036854775807, 9223372036854775807) }}", "Range too big");
  expect_error("{{ 'a'.center(10000000000) }}", "too large");
  expect_error("{{ '%10000000000d' % 1 }}", "too large");
  expect_error("{{ '{:10000000000}'.format(1) }}", "too large");
  expect_error("{{ [[]] | tojson(indent=10000000000) }}", "too large");
  expect_error("{{ 'a\nb' | indent(10000000000) }}", "too large");
  expect_error("{{ [1] | batch(10000000000, 0) | list }}", "list of more than");
  expect_error("{% set s = 'a' * 50000000 %}{{ s.replace('', s) }}", "string of more than");
  expect_error("{% set s = 'aaaaaaaaaa' * 5000000 %}{{ s | list }}", "list of more than");
  expect_error(
      "{% set n = namespace(s='ab') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
      "string of more than");
  expect_error("{% set n = namespace(l=[1]) %}{% for i in range(100) %}{% set n.l = n.l + n.l %}{% endfor %}",
               "MiB of values");
  expect_error("{% set s = 'a' * 60000000 %}{{ s }}{{ s }}", "prints more than");
}

TEST(TemplateLimits, Time) {
  const std::string loops =
      "{% set r = range(9999) %}" + repeated("{% for i in r %}", 4) + repeated("{% endfor %}", 4);
  expect_error(loops, "steps");
  // 2^100 items behind 100 lists: printing, comparing and counting them must not end in a hang.
  const std::string lattice =
      "{% set n = namespace(a=[1, 1], b=[1, 1]) %}{% for i in range(100) %}{% set n.a = [n.a, n.a] %}"
      "{% set n.b = [n.b, n.b] %}{% endfor %}";
  for (const char* use : {"{{ n.a }}", "{{ n.a | tojson }}", "{{ n.a == n.b }}", "{{ n.a < n.b }}",
                          "{{ [n.a] | unique | list }}", "{{ n.a in [n.b] }}"})
    EXPECT_NE(error_of(lattice + use), "") << use;
}

TEST(TemplateLimits, Recursion) {
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurses deeper");
  expect_error("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
               "recurses deeper");
  expect_error(
      "{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% "
      "endmacro %}{{ r() }}",
      "recurses deeper");
  expect_error("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}", "deeper");
  expect_error("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}", "deeper");
  expect_error("{{ " + repeated("{1:", 100000) + "1" + repeated("}", 100000) + " }}", "deeper");
  expect_error("{{ " + repeated("not ", 100000) + "1 }}", "deeper");
  expect_error("{{ " + repeated("-", 100000) + "1 }}", "deeper");
  expect_error("{{ 1" + repeated(" + 1", 100000) + " }}", "deeper");
  expect_error("{{ 'a'" + repeated("|upper", 100000) + " }}", "deeper");
  expect_error("{{ a" + repeated(".a", 100000) + " }}", "deeper");
  expect_error("{{ 1" + repeated(" if 1 else 1", 100000) + " }}", "deeper");
  expect_error(repeated("{% if 1 %}", 100000), "deeper");
  expect_error("{% for " + repeated("(", 100000) + "a" + repeated(")", 100000) + " in x %}", "deeper");
  expect_error("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}",
               "nested deeper");
  expect_error("{% set n = namespace(l=1) %}{% for i in range(9999) %}{% set n.l = {'a': n.l} %}{% endfor %}",
               "nested deeper");
  expect_error(
      "{% set n = namespace(l=[1]) %}{% for i in range(9999) %}{% for j in [n.l] %}{% set n.l = loop %}{% "
      "endfor %}{% endfor %}",
      "nested deeper");
}

TEST(TemplateLimits, CirclesAreFreed) {  // the leak checker sees the rest
  EXPECT_EQ(
      render("{% set n = namespace() %}{% set n.n = n %}{% macro m() %}{% endmacro %}{% set n.m = m %}x"),
      "x");
  EXPECT_EQ(render("{% set n = namespace(p=none) %}{% for i in range(50000) %}{% set n.p = namespace(p=n.p) "
                   "%}{% endfor %}x"),
            "x");
  EXPECT_EQ(
      render(
          "{% set n = namespace(m=none) %}{% for i in range(9999) %}{% set p = n.m %}{% macro m() %}{{ p }}"
          "{% endmacro %}{% set n.m = m %}{% endfor %}x"),
      "x");
}

TEST(TemplateLimits, LongConversationsRender) {
  OrderedJson messages = OrderedJson::array();
  for (int i = 0; i < 5000; ++i)
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(1000, 'x')}});
  const std::string text = render(
      "{%- for m in messages -%}<|{{ m.role }}|>{{ m['content'] | trim }}{{ '\\n' if not loop.last }}{%- "
      "endfor -%}",
      {{"messages", messages}});
  EXPECT_EQ(text.size(), 5000 * (1000 + 4) + 2500 * (4 + 9) + 4999u);
}

TEST(Template, BytesThatAreNoTextSurvive) {
  OrderedJson context;
  context["s"] = "a\xff\xc3z";
  EXPECT_EQ(render("{{ s }}{{ s | length }}{{ s[1] }}{{ s[::-1] }}", context),
            "a\xff\xc3z4\xffz\xc3\xff"
            "a");
}

TEST(Template, NowIsTheClock) {
  const std::time_t before = std::time(nullptr);
  const std::string seconds = ChatTemplate("{{ strftime_now('%s') }}").render(OrderedJson::object());
  EXPECT_GE(std::stoll(seconds), before);
  EXPECT_LE(std::stoll(seconds), std::time(nullptr));
}

TEST(Template, RendersTheSameAgainAndAfterAMove) {
  ChatTemplate first("{% set n = namespace(i=0) %}{% set n.i = n.i + 1 %}{{ n.i }}{{ x }}");
  EXPECT_EQ(first.render({{"x", "a"}}), "1a");
  const ChatTemplate second = std::move(first);
  EXPECT_EQ(second.render({{"x", "b"}}), "1b");
}

}  // namespace
}  // namespace quatrain
