#include "eval/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "eval/report/html.h"

namespace quatrain {
namespace {

constexpr double kWidth = 640, kHeight = 360;
constexpr double kLeft = 76, kRight = 16, kTop = 14, kBottom = 48;

/// Values on one axis to positions in the drawing.
class Scale {
 public:
  Scale(double from, double to, bool logarithmic) : from_(from), to_(to), log_(logarithmic) {}

  void include(double value) {
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  bool empty() const { return low_ > high_; }
  /// A little room at the ends; equal ends become an interval.
  void pad() {
    const double low = inner(low_), high = inner(high_);
    const double room = high > low ? 0.04 * (high - low) : std::max(std::abs(low) * 0.1, 0.5);
    low_ = outer(low - room);
    high_ = outer(high + room);
  }
  double at(double value) const {
    const double share = (inner(value) - inner(low_)) / (inner(high_) - inner(low_));
    return from_ + share * (to_ - from_);
  }
  std::vector<double> ticks(int count) const {
    if (!log_ || high_ / low_ < 8) return axis_ticks(low_, high_, count);
    std::vector<double> values;
    const double step = std::max(1.0, std::ceil(std::log10(high_ / low_) / count));
    for (double power = std::ceil(std::log10(low_)); power <= std::log10(high_); power += step)
      values.push_back(std::pow(10, power));
    return values.size() >= 2 ? values : axis_ticks(low_, high_, count);
  }

 private:
  double inner(double value) const { return log_ ? std::log(value) : value; }
  double outer(double value) const { return log_ ? std::exp(value) : value; }
  double from_, to_;
  bool log_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
};

std::string text(double x, double y, std::string_view attributes, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, escape_html(words));
}

std::string axes(const Plot& plot, const Scale& x, const Scale& y) {
  std::string out;
  for (const double tick : y.ticks(6)) {
    const double at = y.at(tick);
    if (at < kTop - 0.5 || at > kHeight - kBottom + 0.5) continue;
    out += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft,
                       kWidth - kRight, at, at);
    out += text(kLeft - 6, at + 4, "text-anchor=\"end\"", fmt::format("{:.4g}", tick));
  }
  for (const double tick : x.ticks(8)) {
    const double at = x.at(tick);
    if (at < kLeft - 0.5 || at > kWidth - kRight + 0.5) continue;
    out += text(at, kHeight - kBottom + 18, "text-anchor=\"middle\"", fmt::format("{:.5g}", tick));
  }
  out += fmt::format("<path class=\"axis\" d=\"M{} {}V{}H{}\"/>\n", kLeft, kTop, kHeight - kBottom,
                     kWidth - kRight);
  out += text((kLeft + kWidth - kRight) / 2, kHeight - 8, "text-anchor=\"middle\"", plot.x_label);
  const double middle = (kTop + kHeight - kBottom) / 2;
  out += text(14, middle, fmt::format("text-anchor=\"middle\" transform=\"rotate(-90 14 {:.1f})\"", middle),
              plot.y_label);
  return out;
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  for (double index = std::ceil(low / step); index * step <= high + 1e-9 * step; ++index)
    ticks.push_back(index == 0 ? 0 : index * step);
  return ticks;
}

std::string render_svg(const Plot& plot) {
  Scale x(kLeft, kWidth - kRight, false), y(kHeight - kBottom, kTop, plot.log_y);
  const auto drawable = [&](const std::pair<double, double>& point) {
    return std::isfinite(point.first) && std::isfinite(point.second) && (!plot.log_y || point.second > 0);
  };
  for (const PlotSeries& series : plot.series)
    for (const auto& point : series.points)
      if (drawable(point)) x.include(point.first), y.include(point.second);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth,
                                kHeight, escape_html(plot.title));
  if (x.empty()) {
    return out + text(kWidth / 2, kHeight / 2, "text-anchor=\"middle\"", "nothing to draw") + "</svg>\n";
  }
  x.pad();
  y.pad();
  out += axes(plot, x, y);
  for (const PlotSeries& series : plot.series) {
    const int colour = ((series.colour % kPlotColours) + kPlotColours) % kPlotColours;
    std::string path, marks;
    for (const auto& point : series.points) {
      if (!drawable(point)) continue;
      const double left = x.at(point.first), top = y.at(point.second);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", left, top);
      marks += fmt::format(
          "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}: {:.5g}, "
          "{:.5g}</title></circle>\n",
          colour, left, top, plot.lines ? 2.5 : 6.0, escape_html(series.name), point.first, point.second);
    }
    if (plot.lines && !path.empty())
      out += fmt::format("<path class=\"line c{}\" d=\"{}\"/>\n", colour, path);
    out += marks;
  }
  return out + "</svg>\n";
}

}  // namespace quatrain
