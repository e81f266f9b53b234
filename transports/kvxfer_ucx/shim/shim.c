/* One translation unit. UCX's structures, macros and callbacks stay in here. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "api.h"

#include "library.c"
#include "state.c"
#include "operations.c"
#include "links.c"
#include "sessions.c"
#include "owner.c"
#include "raw.c"
