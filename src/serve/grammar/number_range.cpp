#include "serve/grammar/number_range.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quatrain {
namespace {

using Node = Grammar::Node;

constexpr int kDigits = 15;
constexpr int64_t kLargest = 999'999'999'999'999;
constexpr int kMoreDecimals = 6;

/// Writes magnitudes m in [low, high] as m / 10^decimals.
class DigitRange {
 public:
  DigitRange(JsonGrammar& json, int decimals) : json_(json), decimals_(decimals) {}

  void add(Node from, int64_t low, int64_t high, Node to) {
    int64_t first = low;
    for (size_t size = text(low).size(); first <= high; ++size) {
      int64_t last = 1;
      for (size_t i = 0; i < size; ++i) last *= 10;
      last = std::min(high, last - 1);
      if (first <= last) same_size(from, text(first), text(last), 0, to);
      first = std::max(first, last + 1);
    }
  }

 private:
  // At least one digit stands before the point.
  std::string text(int64_t magnitude) const {
    std::string text = std::to_string(magnitude);
    const auto least = static_cast<size_t>(decimals_) + 1;
    if (text.size() < least) text.insert(0, least - text.size(), '0');
    return text;
  }

  Node digit(Node from, char low, char high, size_t at, size_t size, Node to) {
    GrammarBuilder& b = json_.builder();
    if (decimals_ > 0 && at + static_cast<size_t>(decimals_) == size) from = b.byte(from, '.', '.');
    return b.byte(from, static_cast<uint8_t>(low), static_cast<uint8_t>(high), to);
  }

  void same_size(Node from, const std::string& low, const std::string& high, size_t at, Node to) {
    const size_t size = low.size();
    if (at == size) {
      json_.builder().epsilon(from, to);
      return;
    }
    const auto all = [&](const std::string& text, char digit) {
      return text.find_first_not_of(digit, at) == std::string::npos;
    };
    if (all(low, '0') && all(high, '9')) {
      for (size_t i = at; i < size; ++i) from = digit(from, '0', '9', i, size, -1);
      json_.builder().epsilon(from, to);
      return;
    }
    const std::string zeros = low.substr(0, at + 1) + std::string(size - at - 1, '0');
    const std::string nines = low.substr(0, at + 1) + std::string(size - at - 1, '9');
    if (low[at] == high[at])
      return same_size(digit(from, low[at], low[at], at, size, -1), low, high, at + 1, to);
    same_size(digit(from, low[at], low[at], at, size, -1), low, nines, at + 1, to);
    same_size(digit(from, high[at], high[at], at, size, -1), zeros, high, at + 1, to);
    if (low[at] + 1 < high[at])
      same_size(digit(from, static_cast<char>(low[at] + 1), static_cast<char>(high[at] - 1), at, size, -1),
                std::string(size, '0'), std::string(size, '9'), at + 1, to);
  }

  JsonGrammar& json_;
  int decimals_;
};

struct Scaled {
  int64_t low, high;
};

// The multiples m of 10^-decimals in the range. Exact: bounds are rounded to the decimals that they have.
Scaled scale(const NumberRange& range, int decimals, const std::string& where) {
  const double power = std::pow(10.0, decimals);
  for (const auto& bound : {range.low, range.high})
    require(!bound || std::fabs(*bound) * power <= static_cast<double>(kLargest),
            "{}: bounds of more than {} digits are not supported", where, kDigits);
  const auto whole = [&](double bound, bool upwards) {
    const double scaled = bound * power, nearest = std::round(scaled);
    if (std::fabs(scaled - nearest) < 1e-6) return nearest;
    return upwards ? std::ceil(scaled) : std::floor(scaled);
  };
  Scaled scaled{-kLargest, kLargest};
  if (range.low) {
    const double low = whole(*range.low, true);
    scaled.low = static_cast<int64_t>(low) + (range.above_low && low <= *range.low * power + 1e-6 ? 1 : 0);
  }
  if (range.high) {
    const double high = whole(*range.high, false);
    scaled.high =
        static_cast<int64_t>(high) - (range.below_high && high >= *range.high * power - 1e-6 ? 1 : 0);
  }
  require(scaled.low <= scaled.high, "{}: no number lies between the bounds", where);
  return scaled;
}

// The decimals of the shortest text of a bound.
int decimals_of(double bound, const std::string& where) {
  const std::string text = fmt::format("{:.6f}", bound);
  require(std::stod(text) == bound, "{}: bounds of more than 6 decimals are not supported", where);
  const size_t last = text.find_last_not_of('0');
  return static_cast<int>(last - text.find('.'));
}

}  // namespace

Node integer_in(JsonGrammar& json, Node from, const NumberRange& range, const std::string& where) {
  const Scaled scaled = scale(range, 0, where);
  const Node end = json.builder().node();
  DigitRange digits(json, 0);
  if (scaled.high >= 0) digits.add(from, std::max<int64_t>(scaled.low, 0), scaled.high, end);
  if (scaled.low < 0)
    digits.add(json.builder().byte(from, '-', '-'), std::max<int64_t>(1, -scaled.high), -scaled.low, end);
  return end;
}

Node number_in(JsonGrammar& json, Node from, const NumberRange& range, const std::string& where) {
  int decimals = 0;
  for (const auto& bound : {range.low, range.high})
    if (bound) decimals = std::max(decimals, decimals_of(*bound, where));
  if (range.above_low || range.below_high) decimals += 2;
  const Scaled scaled = scale(range, decimals, where);

  GrammarBuilder& b = json.builder();
  const Node end = b.node();
  DigitRange digits(json, decimals);
  const auto magnitudes = [&](Node begin, int64_t low, int64_t high) {
    digits.add(begin, low, high, end);
    if (low >= high) return;
    // m.xxx lies below m + 1, so it is in the range too where m + 1 is.
    Node more = b.node();
    digits.add(begin, low, high - 1, more);
    if (decimals == 0) more = b.byte(more, '.', '.');
    b.epsilon(json.digits(more, 1, kMoreDecimals), end);
  };
  if (scaled.high >= 0) magnitudes(from, std::max<int64_t>(scaled.low, 0), scaled.high);
  if (scaled.low < 0) magnitudes(b.byte(from, '-', '-'), std::max<int64_t>(1, -scaled.high), -scaled.low);
  return end;
}

}  // namespace quatrain
