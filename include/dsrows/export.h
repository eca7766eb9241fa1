/* Visibility and C++ linkage of the public interface. */
#ifndef DSROWS_EXPORT_H
#define DSROWS_EXPORT_H

#if defined(DSROWS_STATIC) || !(defined(__GNUC__) || defined(__clang__))
#define DSR_API
#else
#define DSR_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#define DSR_BEGIN_DECLS extern "C" {
#define DSR_END_DECLS   }
#else
#define DSR_BEGIN_DECLS
#define DSR_END_DECLS
#endif

// clang-format off
/* Initializer of a struct whose first member is struct_size; the rest is 0. C++17 has no designated initializers. */
#ifdef __cplusplus
#define DSR_STRUCT_INIT(type) {sizeof(type)}
#else
#define DSR_STRUCT_INIT(type) {.struct_size = sizeof(type)}
#endif
// clang-format on

#endif
