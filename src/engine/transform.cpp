#include "engine/transform.h"

#include "base/error.h"

namespace quatrain {

std::unique_ptr<OnlineTransform> make_transform(const Transform& transform, int64_t, std::string_view site) {
  if (transform.kind == "none") return nullptr;
  fail("{}: the engine has no online transform of kind \"{}\"; it has none", site, transform.kind);
}

}  // namespace quatrain
