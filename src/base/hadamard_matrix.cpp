#include "base/hadamard_matrix.h"

#include <optional>

#include "base/error.h"
#include "base/rng.h"

namespace quatrain {
namespace {

constexpr int64_t kLargestBase = 4096;    // a dense base costs base^2 entries and base products a value
constexpr int64_t kLargestOrder = 65536;  // 4 GiB of entries

struct PrimePower {
  int64_t prime = 0;
  int exponent = 0;
};

std::optional<PrimePower> prime_power(int64_t q) {
  if (q < 2) return std::nullopt;
  int64_t prime = 2;
  while (prime * prime <= q && q % prime != 0) ++prime;
  if (q % prime != 0) return PrimePower{q, 1};
  PrimePower result{prime, 0};
  for (; q % prime == 0; q /= prime) ++result.exponent;
  if (q != 1) return std::nullopt;
  return result;
}

// GF(p^k) as polynomials over GF(p): element number = its coefficients as digits in base p.
class Field {
 public:
  explicit Field(PrimePower order) : prime_(order.prime), exponent_(order.exponent) {
    for (int i = 0; i < exponent_; ++i) size_ *= prime_;
    if (exponent_ > 1) find_modulus();
  }

  int64_t size() const { return size_; }

  int64_t subtract(int64_t a, int64_t b) const {
    int64_t result = 0, place = 1;
    for (; a > 0 || b > 0; a /= prime_, b /= prime_, place *= prime_)
      result += (a % prime_ - b % prime_ + prime_) % prime_ * place;
    return result;
  }

  int64_t square(int64_t a) const {
    const std::vector<int64_t> digits = digits_of(a);
    std::vector<int64_t> product(static_cast<size_t>(2 * exponent_ - 1), 0);
    for (int i = 0; i < exponent_; ++i)
      for (int j = 0; j < exponent_; ++j) product[i + j] = (product[i + j] + digits[i] * digits[j]) % prime_;
    reduce(product, modulus_);
    int64_t result = 0;
    for (int i = exponent_ - 1; i >= 0; --i) result = result * prime_ + product[i];
    return result;
  }

 private:
  std::vector<int64_t> digits_of(int64_t a) const {
    std::vector<int64_t> digits(static_cast<size_t>(exponent_));
    for (int64_t& digit : digits) digit = a % prime_, a /= prime_;
    return digits;
  }

  // The remainder by a monic polynomial, in place.
  void reduce(std::vector<int64_t>& polynomial, const std::vector<int64_t>& modulus) const {
    const auto degree = static_cast<int64_t>(modulus.size()) - 1;
    for (auto top = static_cast<int64_t>(polynomial.size()) - 1; top >= degree && degree > 0; --top) {
      const int64_t factor = polynomial[top];
      for (int64_t i = 0; i <= degree; ++i) {
        int64_t& digit = polynomial[top - degree + i];
        digit = ((digit - factor * modulus[i]) % prime_ + prime_) % prime_;
      }
    }
  }

  // The first monic polynomial of degree k, in the order of element numbers, without a divisor of degree <= k
  // / 2.
  void find_modulus() {
    for (int64_t low = 0; low < size_; ++low) {
      std::vector<int64_t> candidate = digits_of(low);
      candidate.push_back(1);
      if (irreducible(candidate)) {
        modulus_ = candidate;
        return;
      }
    }
  }

  bool irreducible(const std::vector<int64_t>& candidate) const {
    int64_t count = 1;
    for (int degree = 1; degree <= exponent_ / 2; ++degree) {
      count *= prime_;
      for (int64_t low = 0; low < count; ++low) {
        std::vector<int64_t> divisor = digits_of(low);
        divisor.resize(static_cast<size_t>(degree));
        divisor.push_back(1);
        std::vector<int64_t> rest = candidate;
        reduce(rest, divisor);
        bool zero = true;
        for (int i = 0; i < degree; ++i) zero = zero && rest[i] == 0;
        if (zero) return false;
      }
    }
    return true;
  }

  int64_t prime_;
  int exponent_;
  int64_t size_ = 1;
  std::vector<int64_t> modulus_ = {0, 1};
};

// Q[i, j] = the quadratic character of i - j, bordered by ones: [0, 1; sign 1, Q], order q + 1.
std::vector<int8_t> bordered_jacobsthal(const Field& field, int8_t column_sign) {
  const int64_t q = field.size(), n = q + 1;
  std::vector<int8_t> character(static_cast<size_t>(q), -1);
  character[0] = 0;
  for (int64_t a = 1; a < q; ++a) character[field.square(a)] = 1;
  std::vector<int8_t> result(static_cast<size_t>(n * n), 0);
  for (int64_t i = 1; i < n; ++i) {
    result[i] = 1;
    result[i * n] = column_sign;
    for (int64_t j = 1; j < n; ++j) result[i * n + j] = character[field.subtract(i - 1, j - 1)];
  }
  return result;
}

// H = I + S for skew S, q = 3 mod 4.
std::vector<int8_t> paley_one(PrimePower q) {
  const Field field(q);
  std::vector<int8_t> matrix = bordered_jacobsthal(field, -1);
  for (int64_t i = 0; i <= field.size(); ++i) matrix[i * (field.size() + 1) + i] += 1;
  return matrix;
}

// H = S (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1] for symmetric S, q = 1 mod 4.
std::vector<int8_t> paley_two(PrimePower q) {
  const Field field(q);
  const std::vector<int8_t> s = bordered_jacobsthal(field, 1);
  const int64_t n = field.size() + 1;
  std::vector<int8_t> matrix(static_cast<size_t>(4 * n * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const auto entry = s[i * n + j];
      const auto diagonal = static_cast<int8_t>(i == j);
      int8_t* block = matrix.data() + 2 * i * 2 * n + 2 * j;
      block[0] = static_cast<int8_t>(entry + diagonal);
      block[1] = static_cast<int8_t>(entry - diagonal);
      block[2 * n] = static_cast<int8_t>(entry - diagonal);
      block[2 * n + 1] = static_cast<int8_t>(-entry - diagonal);
    }
  return matrix;
}

struct Construction {
  bool second;  // Paley II
  PrimePower q;
};

std::optional<Construction> construction_of(int64_t base) {
  if (base < 4 || base % 4 != 0 || base > kLargestBase) return std::nullopt;
  const auto one = prime_power(base - 1);  // = 3 mod 4, as 4 divides base
  const auto two = (base / 2 - 1) % 4 == 1 ? prime_power(base / 2 - 1) : std::nullopt;
  if (one && one->exponent == 1) return Construction{false, *one};
  if (two && two->exponent == 1) return Construction{true, *two};
  if (one) return Construction{false, *one};
  if (two) return Construction{true, *two};
  return std::nullopt;
}

std::optional<HadamardOrder> find_order(int64_t order) {
  if (order < 1) return std::nullopt;
  HadamardOrder result{order, 0};
  while (result.base % 2 == 0) result.base /= 2, ++result.power;
  if (result.base == 1) return result;
  for (; result.power >= 0; --result.power, result.base *= 2)
    if (construction_of(result.base)) return result;
  return std::nullopt;
}

}  // namespace

bool hadamard_exists(int64_t order) {
  return find_order(order).has_value();
}

HadamardOrder factor_hadamard_order(int64_t order) {
  const auto found = find_order(order);
  if (found) return *found;
  require(order > 0, "Hadamard transform: order {} is not positive", order);
  fail(
      "Hadamard transform: no matrix of order {} is known (Paley I and II over prime powers, times powers of "
      "two); "
      "use a block-diagonal transform of order {} or another divisor",
      order, order & -order);
}

std::vector<int8_t> hadamard_base_matrix(int64_t base) {
  if (base == 1) return {1};
  const auto construction = construction_of(base);
  require(construction.has_value(), "Hadamard transform: no base matrix of order {} is known", base);
  std::vector<int8_t> matrix = construction->second ? paley_two(construction->q) : paley_one(construction->q);
  for (int64_t column = 0; column < base; ++column) {
    if (matrix[column] == 1) continue;
    for (int64_t row = 0; row < base; ++row)
      matrix[row * base + column] = static_cast<int8_t>(-matrix[row * base + column]);
  }
  return matrix;
}

std::vector<int8_t> hadamard_matrix(int64_t order) {
  const HadamardOrder factors = factor_hadamard_order(order);
  require(order <= kLargestOrder,
          "Hadamard transform: a whole matrix of order {} is too large; the limit is {}", order,
          kLargestOrder);
  const std::vector<int8_t> base = hadamard_base_matrix(factors.base);
  const int64_t inner = int64_t{1} << factors.power;
  std::vector<int8_t> matrix(static_cast<size_t>(order * order));
  for (int64_t i = 0; i < order; ++i)
    for (int64_t j = 0; j < order; ++j) {
      const int8_t entry = base[i / inner * factors.base + j / inner];
      const bool odd = __builtin_parityll(static_cast<uint64_t>((i % inner) & (j % inner))) != 0;
      matrix[i * order + j] = odd ? static_cast<int8_t>(-entry) : entry;
    }
  return matrix;
}

std::vector<float> hadamard_signs(int64_t width, int64_t order, uint64_t seed, bool offset) {
  require(order > 0 && width > 0 && width % order == 0,
          "Hadamard transform: width {} is not a multiple of the order {}", width, order);
  SplitMix64 random(seed);
  std::vector<float> signs(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const auto sign = static_cast<float>(random.sign());
    signs[i] = offset && i % order == 0 ? 1.0f : sign;
  }
  return signs;
}

}  // namespace quatrain
