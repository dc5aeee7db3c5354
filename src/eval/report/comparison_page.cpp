#include "eval/report/comparison_page.h"

#include <fmt/format.h>

#include <cmath>

#include "eval/report/html.h"
#include "eval/report/svg_plot.h"

namespace quatrain {
namespace {

std::string figure_cell(const ComparedFigure& figure, int digits) {
  if (!std::isfinite(figure.error)) return fmt::format("{:.{}f}", figure.value, digits);
  return fmt::format("{:.{}f} ± {:.{}f}", figure.value, digits, figure.error, digits);
}

std::string summary_table(const Comparison& comparison) {
  std::vector<std::string> heading = {"recipe", "bits a weight", "W", "A", "KV", "MB"};
  for (const ComparedFigure& figure : comparison.rows.front().perplexities) heading.push_back(figure.name);
  std::vector<std::vector<std::string>> rows;
  for (const ComparedRow& row : comparison.rows) {
    std::vector<std::string> cells = {row.name,
                                      fmt::format("{:.3f}", row.bits_per_weight),
                                      fmt::format("{:.2f}", row.weight_bits),
                                      fmt::format("{:.2f}", row.activation_bits),
                                      fmt::format("{:.2f}", row.kv_bits),
                                      fmt::format("{:.1f}", static_cast<double>(row.bytes) * 1e-6)};
    for (const ComparedFigure& figure : row.perplexities) cells.push_back(figure_cell(figure, 3));
    rows.push_back(std::move(cells));
  }
  return html_table(heading, rows);
}

std::string task_table(const Comparison& comparison) {
  std::vector<std::string> heading = {"recipe"};
  for (const ComparedFigure& figure : comparison.rows.front().tasks) heading.push_back(figure.name + ", %");
  heading.push_back("mean, %");
  std::vector<std::vector<std::string>> rows;
  for (const ComparedRow& row : comparison.rows) {
    std::vector<std::string> cells = {row.name};
    double sum = 0;
    for (ComparedFigure figure : row.tasks) {
      sum += figure.value * 100 / static_cast<double>(row.tasks.size());
      figure.value *= 100;
      figure.error *= 100;
      cells.push_back(figure_cell(figure, 1));
    }
    cells.push_back(fmt::format("{:.1f}", sum));
    rows.push_back(std::move(cells));
  }
  return html_table(heading, rows);
}

std::string figure_html(const Plot& plot) {
  std::string key = "<ul class=\"key\">";
  for (const PlotSeries& series : plot.series)
    if (!series.points.empty())
      key += fmt::format("<li><i class=\"c{}\"></i>{}</li>", series.colour % kPlotColours,
                         escape_html(series.name));
  return "<figure>\n<figcaption>" + escape_html(plot.title) + "</figcaption>\n" + render_svg(plot) + key +
         "</ul>\n</figure>\n";
}

std::vector<std::pair<double, double>> over_layers(const std::vector<double>& values) {
  std::vector<std::pair<double, double>> points;
  for (size_t layer = 0; layer < values.size(); ++layer)
    points.emplace_back(static_cast<double>(layer), values[layer]);
  return points;
}

/// ln(perplexity), the mean loss, of each row over `size` of the row.
template <typename Size>
Plot loss_plot(const Comparison& comparison, size_t figure, const std::string& x_label, Size size) {
  Plot plot{"Loss over " + x_label + ": " + comparison.rows.front().perplexities[figure].name,
            x_label,
            "loss, ln(perplexity)",
            {},
            false};
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const ComparedRow& row = comparison.rows[i];
    plot.series.push_back(
        {row.name, {{size(row), std::log(row.perplexities[figure].value)}}, static_cast<int>(i)});
  }
  return plot;
}

Plot row_plot(const Comparison& comparison, const std::string& title, const std::string& y_label,
              std::vector<double> ComparedRow::*values) {
  Plot plot{title, "layer", y_label, {}, true, true};
  for (size_t i = 0; i < comparison.rows.size(); ++i)
    plot.series.push_back(
        {comparison.rows[i].name, over_layers(comparison.rows[i].*values), static_cast<int>(i)});
  return plot;
}

Plot curve_plot(const std::vector<LayerCurve>& curves, const std::string& title, const std::string& y_label) {
  Plot plot{title, "layer", y_label, {}, true};
  for (size_t i = 0; i < curves.size(); ++i)
    plot.series.push_back({curves[i].name, over_layers(curves[i].values), static_cast<int>(i)});
  return plot;
}

bool any(const Comparison& comparison, std::vector<double> ComparedRow::*values) {
  for (const ComparedRow& row : comparison.rows)
    if (!(row.*values).empty()) return true;
  return false;
}

std::string plots(const Comparison& comparison) {
  std::string out;
  for (size_t i = 0; i < comparison.rows.front().perplexities.size(); ++i) {
    out += figure_html(loss_plot(comparison, i, "stored bits a weight",
                                 [](const ComparedRow& row) { return row.bits_per_weight; }));
    out += figure_html(loss_plot(comparison, i, "megabytes", [](const ComparedRow& row) {
      return static_cast<double>(row.bytes) * 1e-6;
    }));
  }
  if (any(comparison, &ComparedRow::weight_errors))
    out += figure_html(row_plot(comparison, "Weight error of each layer",
                                "relative error (RMS of its matrices)", &ComparedRow::weight_errors));
  if (any(comparison, &ComparedRow::stream_errors))
    out += figure_html(row_plot(comparison, "Error of the residual stream behind each layer",
                                "relative error", &ComparedRow::stream_errors));
  if (!comparison.jump_ratio.empty())
    out += figure_html(curve_plot(comparison.jump_ratio, "Jump ratio of each layer", "jump ratio"));
  if (!comparison.snr.empty())
    out += figure_html(curve_plot(comparison.snr, "Historical-feature SNR of each layer", "dB"));
  return out;
}

}  // namespace

std::string comparison_page(const Comparison& comparison) {
  std::string body = "<h1>" + escape_html(comparison.model) + ", quantised</h1>\n";
  body += summary_table(comparison);
  body +=
      "<p class=\"note\">W, A and KV are effective bits of the linears' weights, their inputs and the cache, "
      "scales and zeros included; bits a weight counts all that is stored, embedding and head too. ± is one "
      "standard error.</p>\n";
  for (const auto& [name, why] : comparison.failures)
    body += "<p><strong>" + escape_html(name) + "</strong> failed: " + escape_html(why) + "</p>\n";
  if (!comparison.rows.front().tasks.empty()) body += "<h2>Tasks</h2>\n" + task_table(comparison);
  body += "<h2>Plots</h2>\n<div class=\"plots\">\n" + plots(comparison) + "</div>\n<h2>Recipes</h2>\n<dl>\n";
  for (const ComparedRow& row : comparison.rows)
    body += "<dt>" + escape_html(row.name) + "</dt><dd>" + escape_html(row.recipe) + "</dd>\n";
  body += "</dl>\n<h2>Settings and checksums</h2>\n<dl>\n";
  for (const auto& [name, value] : comparison.settings)
    body += "<dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd>\n";
  return html_page(comparison.model + ", quantised", body + "</dl>\n");
}

}  // namespace quatrain
