// Plots as SVG text for a page that holds everything itself: no script, colours from the page's style sheet.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace quatrain {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // those that are not finite are left out
  int colour = 0;                                 // of the page's palette: class "cN", N modulo kPlotColours
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
  bool lines = true;   // points of a series joined; false: marks alone
  bool log_y = false;  // values that are not positive are left out
};

constexpr int kPlotColours = 10;

/// An <svg> element that scales with its container. Its texts are escaped; a point's title says series and
/// values. Without a point to draw, it says so.
std::string render_svg(const Plot& plot);

/// Round values that cover [low, high], about `count` of them; of equal ends, one value.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace quatrain
