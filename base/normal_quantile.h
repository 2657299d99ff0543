// Quantiles of the standard normal distribution with bitwise identical results on every IEEE machine, CPU or GPU,
// because only + - * / and sqrt are used (no libm). Wichura, "Algorithm AS 241", Applied Statistics 37 (1988); error
// below 1e-15 relative. tensor/cpu/normal_draws.cpp has a vectorized form with the same coefficients and order of
// operations.
#pragma once

namespace mcpp {

/// Returns the standard normal quantile of p in (0, 1).
double normal_quantile(double p);

// Coefficients of the rational functions, highest power first.

/// Numerator and denominator for |p - 0.5| <= kCentralQuantile, in kCentralOffset - (p - 0.5)^2.
inline constexpr double kCentralQuantile = 0.425, kCentralOffset = 0.180625;
inline constexpr double kCentralNumerator[]{2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                                            45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                                            133.14166789178437745, 3.387132872796366608};
inline constexpr double kCentralDenominator[]{
    5226.495278852545925,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};

/// Numerator and denominator in sqrt(-ln(min(p, 1 - p))) - kTailOffset, if that root is at most kFarTail.
inline constexpr double kTailOffset = 1.6, kFarTail = 5;
inline constexpr double kTailNumerator[]{7.7454501427834140764e-4, .0227238449892691845833, .24178072517745061177,
                                         1.27045825245236838258,   3.64784832476320460504,  5.7694972214606914055,
                                         4.6303378461565452959,    1.42343711074968357734};
inline constexpr double kTailDenominator[]{
    1.05075007164441684324e-9, 5.475938084995344946e-4, .0151986665636164571966, .14810397642748007459,
    .68976733498510000455,     1.6763848301838038494,   2.05319162663775882187,  1.0};

/// Numerator and denominator in the same root - kFarTail, beyond it.
inline constexpr double kFarTailNumerator[]{
    2.01033439929228813265e-7, 2.71155556874348757815e-5, .0012426609473880784386, .026532189526576123093,
    .29656057182850489123,     1.7848265399172913358,     5.4637849111641143699,   6.6579046435011037772};
inline constexpr double kFarTailDenominator[]{
    2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
    .0148753612908506148525,    .13692988092273580531,    .59983220655588793769,    1.0};

// Natural logarithm of normal x > 0, with x = m 2^e, m in [sqrt(1/2), sqrt(2)) and ln(m) = 2 atanh((m - 1) / (m + 1)).
inline constexpr double kSqrt2 = 1.4142135623730951, kLn2 = 0.6931471805599453094;
inline constexpr int kAtanhTerms = 25;  ///< highest power of the series, whose terms are odd

}  // namespace mcpp
