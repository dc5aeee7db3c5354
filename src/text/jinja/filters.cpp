#include "text/jinja/filters.h"

namespace quatrain::jinja {

Filter find_filter(std::string_view name) {
  for (const auto group : {find_text_filter, find_number_filter, find_sequence_filter, find_selection_filter})
    if (const Filter filter = group(name)) return filter;
  return nullptr;
}

}  // namespace quatrain::jinja
