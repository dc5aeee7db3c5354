// The report: escaping, plots, tables in every form, and that the page needs nothing but itself.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "eval/report/comparison_page.h"
#include "eval/report/html.h"
#include "eval/report/svg_plot.h"

namespace quatrain {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const std::string kHostile = "<script>alert('x')</script> & \"q\", \xFF\x01\n=1+1";

Comparison hostile_comparison() {
  Comparison comparison;
  comparison.model = kHostile;
  for (int i = 0; i < 3; ++i) {
    ComparedRow row;
    row.name = kHostile + std::to_string(i);
    row.recipe = kHostile;
    row.key = {{"of", {{"model", "m"}}}};
    row.bits_per_weight = 4.25 + i;
    row.weight_bits = 4.25;
    row.bytes = 1000000;
    row.perplexities = {{"token-ppl@2048 " + kHostile, 20.0 + i, i == 0 ? kNan : 0.5, Json::object()}};
    row.tasks = {{"arc_easy acc", 0.25, 0.01, Json::object()}, {kHostile, 0.75, kNan, Json::object()}};
    row.weight_errors = {0.1, 0.2, 0};  // a zero has no place on a logarithmic axis
    comparison.rows.push_back(row);
  }
  comparison.rows[2].stream_errors = {0.1, kNan, 0.3};
  comparison.jump_ratio = {{kHostile, {1.5, 0.2, 0.1}}};
  comparison.snr = {{"4 bits", {12, 13, 14}}, {"8 bits", {36, 37, 38}}};
  comparison.failures = {{kHostile, kHostile}};
  comparison.settings = {{kHostile, kHostile}};
  return comparison;
}

/// Every tag that opens is closed in order; returns the first offence, or "".
std::string check_nesting(const std::string& html) {
  static const std::set<std::string> empty = {"meta", "!doctype"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "an open tag at the end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag.substr(1) + "> out of place";
      open.pop_back();
    } else if (!tag.ends_with('/') && !empty.contains(name)) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

TEST(Report, EscapesText) {
  EXPECT_EQ(escape_html("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape_html(std::string("\x01\xFFz\n", 4)), "\uFFFD\uFFFDz\n");
}

TEST(Report, PageHoldsEverythingAndNothingForeign) {
  const std::string page = comparison_page(hostile_comparison());
  EXPECT_EQ(check_nesting(page), "");
  EXPECT_EQ(page.find("<script"), std::string::npos);
  for (const char* outside : {"http://", "https://", "url(", "@import", " src=", "\"q\""})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_EQ(page.find("nan"), std::string::npos);
  for (const char* part :
       {"Loss over stored bits a weight", "Loss over megabytes", "Weight error of each layer",
        "Error of the residual stream", "Jump ratio of each layer", "Historical-feature SNR",
        "prefers-color-scheme:dark", "width=device-width", "Settings and checksums"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST(Report, PlotsWhatCanBeDrawn) {
  const auto count = [](const std::string& text, std::string_view part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string plot = render_svg(
      {"t", "x", "y", {{"a", {{0, 1}, {1, kNan}, {2, infinity}, {3, -1}, {4, 10}}, 13}}, true, true});
  EXPECT_EQ(count(plot, "<circle"), 2u);
  EXPECT_EQ(count(plot, "class=\"c3\""), 2u);  // the palette goes round
  EXPECT_EQ(plot.find("nan"), std::string::npos);
  EXPECT_EQ(plot.find("inf"), std::string::npos);
  EXPECT_NE(render_svg({"t", "x", "y", {{"a", {}}}}).find("nothing to draw"), std::string::npos);
  EXPECT_EQ(count(render_svg({"t", "x", "y", {{"one", {{2, 5}}}}, false}), "<circle"), 1u);
  EXPECT_EQ(count(render_svg({"t", "x", "y", {{"zero", {{0, 0}}}}, false}), "nan"), 0u);
}

TEST(Report, TicksAreRoundAndCoverTheAxis) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(3, 3, 5), (std::vector<double>{3}));
  for (const double tick : axis_ticks(0.013, 0.081, 6)) EXPECT_NEAR(tick * 100, std::round(tick * 100), 1e-9);
  EXPECT_LE(axis_ticks(-1e9, 1e9, 6).size(), 7u);
}

TEST(Report, CsvQuotesAndHasEveryRow) {
  const std::string csv = hostile_comparison().to_csv();
  int64_t lines = 0, cells = 1;
  bool quoted = false;
  std::vector<int64_t> widths;
  for (size_t i = 0; i < csv.size(); ++i) {
    if (csv[i] == '"') quoted = !quoted;
    if (quoted) continue;
    if (csv[i] == ',') ++cells;
    if (csv[i] == '\n') widths.push_back(cells), cells = 1, ++lines;
  }
  EXPECT_EQ(lines, 4);
  EXPECT_EQ(widths, std::vector<int64_t>(4, 7 + 3 * 2));
  EXPECT_EQ(csv.find("nan"), std::string::npos);
}

TEST(Report, RowsSurviveAFile) {
  for (const ComparedRow& row : hostile_comparison().rows) {
    ComparedRow clean = row;
    clean.name = clean.recipe = "plain";  // a file holds UTF-8 only
    clean.perplexities[0].name = clean.tasks[1].name = "figure";
    clean.stream_errors.clear();  // and no NaN in lists
    const Json json = parse_json(clean.to_json().dump(), "row");
    EXPECT_EQ(ComparedRow::from_json(json, "row").to_json(), json);
  }
  EXPECT_THROW(ComparedRow::from_json(Json::array(), "row"), Error);
}

TEST(Report, TextHasALineARow) {
  const std::string text = hostile_comparison().to_text();
  EXPECT_NE(text.find("4.250"), std::string::npos);
  EXPECT_NE(text.find("22.0000"), std::string::npos);
}

}  // namespace
}  // namespace quatrain
