/* In place of ExecuTorch's backend for QNN and of Qualcomm's libraries: one source for all, with
   NAME, and LOADS, the library that it opens by its bare name when it is loaded itself. Each says
   which file it was loaded from. The stub looks for its skel as the HTP's loader does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int here;

#ifdef SKEL
static void find_skel(void) {
  const char *folder = getenv("ADSP_LIBRARY_PATH");
  char path[4096];
  snprintf(path, sizeof path, "%s/" SKEL, folder ? folder : "(unset)");
  FILE *file = fopen(path, "r");
  printf("skel %s %s\n", path, file ? "found" : "not found");
  if (file) fclose(file);
}
#endif

__attribute__((constructor)) static void loaded(void) {
  Dl_info info;
  dladdr(&here, &info);
  printf("%s from %s\n", NAME, info.dli_fname);
#ifdef LOADS
  if (!dlopen(LOADS, RTLD_NOW | RTLD_LOCAL)) printf("Cannot Open QNN library " LOADS ", with error: %s\n", dlerror());
#endif
#ifdef SKEL
  find_skel();
#endif
  fflush(stdout);
}

int etdeploy_stand_in(void) { return 0; }
