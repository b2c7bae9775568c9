#include "exact.h"

#include <cstring>

namespace coli {
namespace {

/* An unevaluated sum: |low| is at most half an ulp of high. */
struct Pair {
  double high;
  double low;
};

Pair two_sum(double a, double b) {
  const double s = a + b;
  const double t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}

/* Dekker's product: high + low == a * b exactly, as long as nothing overflows or underflows. */
Pair two_product(double a, double b) {
  constexpr double kSplit = 134217729.0; /* 2^27 + 1 */
  const double ta = kSplit * a, tb = kSplit * b;
  const double ah = ta - (ta - a), bh = tb - (tb - b);
  const double al = a - ah, bl = b - bh;
  const double p = a * b;
  return {p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

Pair add(Pair a, Pair b) {
  const Pair s = two_sum(a.high, b.high);
  const Pair t = two_sum(a.low, b.low);
  const Pair u = two_sum(s.high, s.low + t.high);
  return two_sum(u.high, u.low + t.low);
}

int64_t nearest(double x) { return static_cast<int64_t>(x + (x < 0 ? -0.5 : 0.5)); }

/* pi/2 to 160 bits. */
constexpr double kHalfPi[3] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

/* Taylor polynomials on [-pi/4, pi/4]; what is cut off is below 2^-60 of the value. The low part of the angle enters
 * with the first derivative. */
double sine_polynomial(Pair r) {
  const double x = r.high, z = x * x;
  double p = 1.0 / 355687428096000.0;
  p = p * z - 1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  return x + (x * z * p + r.low * (1.0 - 0.5 * z));
}

double cosine_polynomial(Pair r) {
  const double x = r.high, z = x * x;
  double p = -1.0 / 6402373705728000.0;
  p = p * z + 1.0 / 20922789888000.0;
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  /* 1 - z/2 rounds; what the rounding lost is added back. */
  const double half = 0.5 * z;
  const double w = 1.0 - half;
  return w + (((1.0 - w) - half) + (z * z * p - x * r.low));
}

double power_of_two(int64_t exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

void rope_angle(double position, double frequency, float *cosine, float *sine) {
  const Pair angle = two_product(position, frequency);
  const int64_t turns = nearest(angle.high * kTwoOverPi);
  const double n = static_cast<double>(-turns);
  Pair r = add(angle, two_product(n, kHalfPi[0]));
  r = add(r, two_product(n, kHalfPi[1]));
  r = add(r, {n * kHalfPi[2], 0.0});
  const double s = sine_polynomial(r), c = cosine_polynomial(r);
  switch (turns & 3) {
    case 0:
      *cosine = static_cast<float>(c), *sine = static_cast<float>(s);
      return;
    case 1:
      *cosine = static_cast<float>(-s), *sine = static_cast<float>(c);
      return;
    case 2:
      *cosine = static_cast<float>(-c), *sine = static_cast<float>(-s);
      return;
    default:
      *cosine = static_cast<float>(s), *sine = static_cast<float>(-c);
      return;
  }
}

double exp_double(double x) {
  if (x != x) return x;
  if (x > 709.79) return power_of_two(1023) * 2.0; /* +infinity: exp(709.79) is above the largest double */
  if (x < -745.2) return 0.0;
  const int64_t k = nearest(x * 0x1.71547652b82fep+0);
  const double n = static_cast<double>(k);
  /* ln 2 in two parts; the first has 32 zero bits at its end, so that n * high is exact. */
  const Pair r = two_sum(x - n * 0x1.62e42feep-1, -(n * 0x1.a39ef35793c76p-33));
  const double y = r.high;
  double p = 1.0 / 6227020800.0;
  p = p * y + 1.0 / 479001600.0;
  p = p * y + 1.0 / 39916800.0;
  p = p * y + 1.0 / 3628800.0;
  p = p * y + 1.0 / 362880.0;
  p = p * y + 1.0 / 40320.0;
  p = p * y + 1.0 / 5040.0;
  p = p * y + 1.0 / 720.0;
  p = p * y + 1.0 / 120.0;
  p = p * y + 1.0 / 24.0;
  p = p * y + 1.0 / 6.0;
  p = p * y + 0.5;
  const Pair one = two_sum(1.0, y); /* 1 + y rounds by up to a quarter ulp of the result: keep what it lost */
  const double value = one.high + (one.low + (y * y * p + r.low * (1.0 + y)));
  /* Two factors: 2^k may be outside the range of a double where the product is not. */
  const int64_t half = k / 2;
  return value * power_of_two(half) * power_of_two(k - half);
}

}  // namespace coli
