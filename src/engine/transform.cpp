#include "engine/transform.h"

#include "base/error.h"
#include "ops/hadamard.h"

namespace quatrain {
namespace {

class HadamardOperator : public OnlineTransform {
 public:
  HadamardOperator(int64_t width, int64_t order, uint64_t seed, bool offset)
      : hadamard_(width, order, seed, offset) {}

  void apply(float* x, int64_t rows, int64_t stride) const override {
    for (int64_t row = 0; row < rows; ++row) hadamard_.apply_row(x + row * stride);
  }

 private:
  ops::HadamardTransform hadamard_;
};

}  // namespace

std::unique_ptr<OnlineTransform> make_transform(const Transform& transform, int64_t width, std::string_view site) {
  const std::string& kind = transform.kind;
  if (kind == "none") return nullptr;
  const bool grouped = kind == "grouped-hadamard" || kind == "grouped-offset-hadamard";
  require(grouped || kind == "hadamard",
          "{}: the engine has no online transform of kind \"{}\"; it has none, hadamard, grouped-hadamard, "
          "grouped-offset-hadamard",
          site, kind);
  require(transform.order > 0 && width % transform.order == 0 && (grouped || transform.order == width),
          "{}: a {} of order {} does not fit {} values; the order {}", site, kind, transform.order, width,
          grouped ? "must divide them" : "must be that number");
  try {
    return std::make_unique<HadamardOperator>(width, transform.order, transform.seed,
                                              kind == "grouped-offset-hadamard");
  } catch (const Error& error) {
    fail("{}: {}", site, error.what());
  }
}

}  // namespace quatrain
