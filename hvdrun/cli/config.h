/** --config-file: the YAML file of horovodrun, its keys as in the option table. */
#ifndef HVI_HVDRUN_CONFIG_H
#define HVI_HVDRUN_CONFIG_H

#include "hvdrun/cli/opts.h"

/**
 * Reads the file into o; options that stood on the command line keep their value.
 *
 * Returns  HVD_OK; HVD_EINVAL: cannot be read, is not YAML, or has a bad value or an
 * unknown key ("file:line: ..."). HVD_ENOMEM.
 */
enum hvd_status hvi_config_load(const char *path, struct hvi_opts *o,
                                struct hvi_err *err);
/** The same from memory; name is for messages. */
enum hvd_status hvi_config_parse(const char *name, const char *text, size_t size_bytes,
                                 struct hvi_opts *o, struct hvi_err *err);

#endif
