/* fma.cpp: fma IN OUT HARD: triples of float32 in, three results each out: soft, hard (compiled with -mfma), the runtime's fmaf. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coli_math.h"

float soft(float a, float b, float c);
float hard(float a, float b, float c);
float NAME(float a, float b, float c) { return coli_fma(a, b, c); }

#ifdef MAIN
int main(int count, char **words) {
  if (count < 4) return 2;
  FILE *in = fopen(words[1], "rb"), *out = fopen(words[2], "wb");
  if (!in || !out) return 2;
  const bool has_fma = atoi(words[3]) != 0;
  for (float row[3]; fread(row, sizeof row, 1, in) == 1;) {
    volatile float a = row[0], b = row[1], c = row[2]; /* nothing is computed by the compiler */
    const float made[3] = {soft(a, b, c), has_fma ? hard(a, b, c) : 0.0f, fmaf(a, b, c)};
    if (fwrite(made, sizeof made, 1, out) != 1) return 2;
  }
  return fclose(out) == 0 ? 0 : 2;
}
#endif
