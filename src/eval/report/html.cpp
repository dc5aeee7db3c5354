#include "eval/report/html.h"

#include <fmt/format.h>

#include "eval/report/svg_plot.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

constexpr std::string_view kStyle =
    R"(:root{color-scheme:light dark;--fg:#1d2430;--bg:#fff;--soft:#5b6675;--rule:#d9dee6;--card:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--fg:#e4e8ee;--bg:#14181d;--soft:#9aa5b3;--rule:#333b46;--card:#1b2027}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:72rem;font:16px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
h1{font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}h2{font-size:1.15rem;margin-top:2rem}
p,dd{overflow-wrap:anywhere}.note{color:var(--soft);font-size:.9rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}
figure{margin:0;padding:.75rem;background:var(--card);border-radius:.5rem;min-width:0}
figcaption{font-weight:600;margin-bottom:.25rem}
svg{display:block;width:100%;height:auto}svg text{font-size:13px;fill:var(--soft)}
.grid{stroke:var(--rule)}.axis{stroke:var(--soft);fill:none}.line{fill:none!important;stroke-width:2}
.key{display:flex;flex-wrap:wrap;gap:.2rem .9rem;list-style:none;margin:.4rem 0 0;padding:0;font-size:.85rem}
.key i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.35em}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;font-size:.9rem}dt{color:var(--soft)}dd{margin:0}
@media(max-width:34rem){svg text{font-size:18px}dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}}
)";

// Ten colours that keep apart on light and on dark.
constexpr std::string_view kColours[kPlotColours] = {"#2f7ed8", "#d9662a", "#2a9d5c", "#b6409c", "#c79a12",
                                                     "#6b62d9", "#17939c", "#d6404f", "#8a7a5c", "#7c8794"};

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : replace_invalid_utf8(text)) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F)
      out += "\uFFFD";
    else
      out += c;
  }
  return out;
}

std::string html_page(std::string_view title, std::string_view body) {
  std::string colours;
  for (int i = 0; i < kPlotColours; ++i)
    colours += fmt::format(".c{0}{{stroke:{1};fill:{1}}}i.c{0}{{background:{1}}}\n", i, kColours[i]);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n{}</body>\n"
      "</html>\n",
      escape_html(title), kStyle, colours, body);
}

std::string html_table(const std::vector<std::string>& heading,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>";
  for (const std::string& cell : heading) out += "<th scope=\"col\">" + escape_html(cell) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      out += (i == 0 ? "<th scope=\"row\">" : "<td>") + escape_html(row[i]) + (i == 0 ? "</th>" : "</td>");
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace quatrain
