/* Complex functions of the C runtime that Wine does not have, for numpy: see math_library.py. */
#include <math.h>

#define COMPLEX_FUNCTIONS(T, s)                                                                                    \
  typedef _Complex T C##s;                                                                                         \
  static C##s made##s(T re, T im) { C##s z; __real__ z = re; __imag__ z = im; return z; }                          \
  T x_creal##s(C##s z) { return __real__ z; }                                                                      \
  T x_cimag##s(C##s z) { return __imag__ z; }                                                                      \
  T x_cabs##s(C##s z) { return hypot(__real__ z, __imag__ z); }                                                    \
  T x_carg##s(C##s z) { return atan2(__imag__ z, __real__ z); }                                                    \
  C##s x_cexp##s(C##s z) { T e = exp(__real__ z); return made##s(e * cos(__imag__ z), e * sin(__imag__ z)); }      \
  C##s x_clog##s(C##s z) { return made##s(log(x_cabs##s(z)), x_carg##s(z)); }                                      \
  C##s x_cpow##s(C##s z, C##s w) {                                                                                 \
    C##s l = x_clog##s(z);                                                                                         \
    return x_cexp##s(made##s(__real__ l * __real__ w - __imag__ l * __imag__ w,                                    \
                             __real__ l * __imag__ w + __imag__ l * __real__ w));                                  \
  }                                                                                                                \
  C##s x_csqrt##s(C##s z) { T r = sqrt(x_cabs##s(z)), a = x_carg##s(z) / 2; return made##s(r * cos(a), r * sin(a)); } \
  C##s x_ccos##s(C##s z) { return made##s(cos(__real__ z) * cosh(__imag__ z), -sin(__real__ z) * sinh(__imag__ z)); } \
  C##s x_csin##s(C##s z) { return made##s(sin(__real__ z) * cosh(__imag__ z), cos(__real__ z) * sinh(__imag__ z)); } \
  C##s x_ccosh##s(C##s z) { return made##s(cosh(__real__ z) * cos(__imag__ z), sinh(__real__ z) * sin(__imag__ z)); } \
  C##s x_csinh##s(C##s z) { return made##s(sinh(__real__ z) * cos(__imag__ z), cosh(__real__ z) * sin(__imag__ z)); } \
  C##s x_ctan##s(C##s z) {                                                                                         \
    T d = cos(2 * __real__ z) + cosh(2 * __imag__ z);                                                              \
    return made##s(sin(2 * __real__ z) / d, sinh(2 * __imag__ z) / d);                                             \
  }                                                                                                                \
  C##s x_ctanh##s(C##s z) {                                                                                        \
    T d = cosh(2 * __real__ z) + cos(2 * __imag__ z);                                                              \
    return made##s(sinh(2 * __real__ z) / d, sin(2 * __imag__ z) / d);                                             \
  }

COMPLEX_FUNCTIONS(double, )
COMPLEX_FUNCTIONS(float, f)
COMPLEX_FUNCTIONS(long double, l)
long double x_cbrtl(long double x) { return cbrt(x); }
long double x_copysignl(long double x, long double y) { return copysign(x, y); }
