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
#define DSR_END_DECLS }
#else
#define DSR_BEGIN_DECLS
#define DSR_END_DECLS
#endif

#endif
