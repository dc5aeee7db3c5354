#include "text/score_merges.h"

#include <algorithm>

#include "text/utf8.h"

namespace quatrain {

std::vector<ScoreMerge> score_merges(const std::vector<float>& scores, const std::vector<bool>& plain,
                                     const Vocabulary& vocabulary) {
  std::vector<int32_t> order;
  for (size_t id = 0; id < plain.size(); ++id)
    if (plain[id]) order.push_back(static_cast<int32_t>(id));
  const auto score = [&](int32_t id) { return scores[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });

  std::vector<ScoreMerge> merges;
  int32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    const std::string_view text = vocabulary.text(order[i]);
    if (text.empty()) continue;
    const size_t begin = merges.size();
    for (size_t cut = utf8_at(text, 0).size; cut < text.size(); cut += utf8_at(text, cut).size) {
      const auto left = vocabulary.find(text.substr(0, cut)), right = vocabulary.find(text.substr(cut));
      if (left && right && plain[static_cast<size_t>(*left)] && plain[static_cast<size_t>(*right)])
        merges.push_back({*left, *right, order[i], rank});
    }
    std::sort(merges.begin() + static_cast<ptrdiff_t>(begin), merges.end(),
              [](const ScoreMerge& a, const ScoreMerge& b) {
                return a.left != b.left ? a.left < b.left : a.right < b.right;
              });
  }
  return merges;
}

}  // namespace quatrain
