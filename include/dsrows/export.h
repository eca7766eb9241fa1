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

/* Initializer of a struct whose first member is struct_size; the rest is 0. */
#ifdef __cplusplus
extern "C++" {
template <class T> inline T dsr_struct_init()
{
    T x = T();
    x.struct_size = sizeof(T);
    return x;
}
}
#define DSR_STRUCT_INIT(type) dsr_struct_init<type>()
#else
#define DSR_STRUCT_INIT(type)                                                                                          \
    {                                                                                                                  \
        .struct_size = sizeof(type)                                                                                    \
    }
#endif

#endif
