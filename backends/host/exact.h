/* Double arithmetic that gives the same bits on every machine: additions, multiplications and integer operations only,
 * no libm, no fma. Compile with contraction off. */
#ifndef COLI_HOST_EXACT_H
#define COLI_HOST_EXACT_H

#include <cstdint>

namespace coli {

/* Largest |angle| in radians that rope_angle reduces: the multiple of pi/2 stays an exact integer far below 2^53. */
constexpr double kLargestAngle = 1099511627776.0; /* 2^40 */

/* Cosine and sine of position * frequency, the product taken exactly, rounded to float32 once. |angle| <=
 * kLargestAngle. */
void rope_angle(double position, double frequency, float *cosine, float *sine);

/* e^x with an error below 1 ulp; +infinity above the range, 0 below it, NaN for NaN. */
double exp_double(double x);

}  // namespace coli
#endif
