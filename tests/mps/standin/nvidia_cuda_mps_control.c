/* An nvidia-cuda-mps-control for tests: the real one's options, commands, files and ways to fail, with no GPU.
 *
 *   -d, -f           run as control daemon, in the background (back when it can be reached) or the foreground
 *   (nothing)        send the commands of standard input to the daemon of CUDA_MPS_PIPE_DIRECTORY, print its answers
 *   --client         be an MPS client: stay connected, say each answer; ends with status 1 when the daemon is gone
 *
 * In C and linked statically, because it has to look like a daemon in /proc (name, arguments, environment), and to run
 * in a container's image and in a driver's root, neither of which has an interpreter.
 *
 * Of its own: MPS_STANDIN_GPUS, a folder with a lock for each GPU of CUDA_VISIBLE_DEVICES: a second daemon on a GPU
 * notes that in the file `violations`, and ends. MPS_STANDIN_CLOSES: close what was inherited, as daemons may.
 * MPS_STANDIN_FAILS: a file; while it is there, -d says so and ends with status 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PEERS = 128, MAX_DEVICES = 64, TEXT = 4096 };

struct peer {
    int fd;
    bool client; /* an MPS client, which stays; else one command, which is answered */
    pid_t pid;
};

static struct {
    char pipes[TEXT], log[TEXT];
    int socket, peers;
    struct peer peer[MAX_PEERS];
    char percentage[32];
    int limits;
    char device[MAX_DEVICES][96], limit[MAX_DEVICES][32];
    bool served, ending; /* whether a server was ever asked for; told to quit */
    time_t forced;       /* when clients are cut off, 0: never */
} control = {.percentage = "100.0"};

static void note(const char *format, ...)
{
    char path[TEXT + 32];
    snprintf(path, sizeof(path), "%s/control.log", control.log);
    FILE *file = fopen(path, "ae");
    if (!file)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(file, "[Control %d] ", getpid());
    vfprintf(file, format, arguments);
    fputc('\n', file);
    va_end(arguments);
    fclose(file);
}

static const char *in_pipes(const char *name)
{
    static char path[TEXT + 64];
    snprintf(path, sizeof(path), "%s/%s", control.pipes, name);
    return path;
}

static struct sockaddr_un address(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (snprintf(at.sun_path, sizeof(at.sun_path), "%s", in_pipes("control")) >= (int)sizeof(at.sun_path)) {
        fprintf(stderr, "%s is too long for a socket\n", control.pipes);
        exit(1);
    }
    return at;
}

static int clients(void)
{
    int count = 0;
    for (int i = 0; i < control.peers; i++)
        count += control.peer[i].client;
    return count;
}

/* ---- the daemon ---- */

/* Locks each GPU for as long as this process lives. */
static bool claim_gpus(void)
{
    const char *folder = getenv("MPS_STANDIN_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!folder)
        return true;
    char list[TEXT], path[2 * TEXT];
    snprintf(list, sizeof(list), "%s", visible && *visible ? visible : "all");
    char *rest = list;
    for (char *gpu; (gpu = strsep(&rest, ","));) {
        snprintf(path, sizeof(path), "%s/%s", folder, gpu);
        int fd = open(path, O_RDWR | O_CREAT, 0644);
        if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB))
            continue;
        snprintf(path, sizeof(path), "%s/violations", folder);
        FILE *file = fopen(path, "a");
        if (file) {
            fprintf(file, "%s\n", gpu);
            fclose(file);
        }
        return false;
    }
    return true;
}

static void answer(FILE *out, char *command)
{
    char name[64] = "", first[96] = "", second[96] = "";
    sscanf(command, "%63s %95s %95s", name, first, second);
    note("Cmd:%s", command);
    if (!strcmp(name, "get_server_list")) {
        if (control.served)
            fprintf(out, "%d\n", getpid());
    } else if (!strcmp(name, "get_client_list")) {
        for (int i = 0; i < control.peers; i++)
            if (control.peer[i].client)
                fprintf(out, "%d\n", control.peer[i].pid);
    } else if (!strcmp(name, "set_default_active_thread_percentage")) {
        snprintf(control.percentage, sizeof(control.percentage), "%.1f", atof(first));
        fprintf(out, "%s\n", control.percentage);
    } else if (!strcmp(name, "get_default_active_thread_percentage")) {
        fprintf(out, "%s\n", control.percentage);
    } else if (!strcmp(name, "set_default_device_pinned_mem_limit") && *second) {
        int i = 0;
        while (i < control.limits && strcmp(control.device[i], first))
            i++;
        if (i == MAX_DEVICES)
            return;
        control.limits = i == control.limits ? i + 1 : control.limits;
        snprintf(control.device[i], sizeof(control.device[i]), "%s", first);
        snprintf(control.limit[i], sizeof(control.limit[i]), "%.31s", second);
    } else if (!strcmp(name, "get_default_device_pinned_mem_limit")) {
        for (int i = 0; i < control.limits; i++)
            if (!strcmp(control.device[i], first))
                fprintf(out, "%s\n", control.limit[i]);
    } else if (!strcmp(name, "quit")) {
        control.ending = true;
        if (!strcmp(first, "-t"))
            control.forced = time(NULL) + atoi(second);
    } else {
        fprintf(out, "Unknown command: %s\n", name);
    }
}

/* Takes a new peer's first line, which says what it is. */
static void greet(int fd)
{
    char text[TEXT];
    ssize_t got = read(fd, text, sizeof(text) - 1);
    struct ucred who;
    socklen_t size = sizeof(who);
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
    if (got >= 7 && !strncmp(text, "CLIENT\n", 7) && control.peers < MAX_PEERS && !control.ending) {
        control.peer[control.peers++] = (struct peer){fd, true, who.pid};
        control.served = true;
        note("NEW CLIENT %d", who.pid);
        dprintf(fd, "connected\n");
        return;
    }
    FILE *out = got > 0 ? fdopen(fd, "w") : NULL;
    if (!out) {
        close(fd);
        return;
    }
    text[got] = '\0';
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (*line)
            answer(out, line);
    fclose(out);
}

static void hear(int place)
{
    char text[TEXT];
    struct peer *peer = &control.peer[place];
    ssize_t got = read(peer->fd, text, sizeof(text) - 1);
    if (got > 0) {
        text[got] = '\0';
        dprintf(peer->fd, "%s", text);
        return;
    }
    note("Client %d disconnected", peer->pid);
    close(peer->fd);
    *peer = control.peer[--control.peers];
}

static int serve(void)
{
    for (;;) {
        struct pollfd each[MAX_PEERS + 1] = {{control.socket, POLLIN, 0}};
        for (int i = 0; i < control.peers; i++)
            each[i + 1] = (struct pollfd){control.peer[i].fd, POLLIN, 0};
        int watched = control.peers;
        if (control.ending && (!clients() || (control.forced && time(NULL) >= control.forced))) {
            unlink(in_pipes("control"));
            unlink(in_pipes("nvidia-cuda-mps-control.pid"));
            note("Exit");
            return 0;
        }
        poll(each, (nfds_t)watched + 1, 50);
        for (int i = watched; i > 0; i--)
            if (each[i].revents)
                hear(i - 1);
        if (each[0].revents) {
            int fd = accept4(control.socket, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0)
                greet(fd);
        }
    }
}

static int start(bool background)
{
    const char *fails = getenv("MPS_STANDIN_FAILS");
    if (fails && !access(fails, F_OK)) {
        fputs("Failed to start: told to\n", stderr);
        return 1;
    }
    int ready[2] = {-1, -1};
    if (background) {
        if (pipe2(ready, O_CLOEXEC))
            return 1;
        pid_t child = fork();
        if (child) {
            char byte;
            close(ready[1]);
            return child > 0 && read(ready[0], &byte, 1) == 1 ? 0 : 1;
        }
        setsid();
    }
    if (getenv("MPS_STANDIN_CLOSES"))
        for (int fd = 3; fd < 256; fd++)
            if (fd != ready[1])
                close(fd);
    signal(SIGPIPE, SIG_IGN);
    int lock = open(in_pipes("control_lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB)) {
        fputs("An instance of this daemon is already running\n", stderr);
        return 1;
    }
    if (!claim_gpus())
        return 1;
    struct sockaddr_un at = address();
    unlink(at.sun_path);
    control.socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    umask(0);
    if (bind(control.socket, (struct sockaddr *)&at, sizeof(at)) || listen(control.socket, MAX_PEERS)) {
        fprintf(stderr, "%s: %s\n", at.sun_path, strerror(errno));
        return 1;
    }
    FILE *file = fopen(in_pipes("nvidia-cuda-mps-control.pid"), "we");
    if (file) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
    note("Starting control daemon using socket %s", at.sun_path);
    if (background && write(ready[1], "r", 1) != 1)
        return 1;
    if (background) {
        close(ready[1]);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int fd = 0; null >= 0 && fd < 3; fd++)
            dup2(null, fd);
    }
    return serve();
}

/* ---- those who connect ---- */

static int reach(void)
{
    struct sockaddr_un at = address();
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&at, sizeof(at)) ? -1 : fd;
}

static int command(void)
{
    char text[TEXT];
    size_t length = fread(text, 1, sizeof(text), stdin);
    int fd = reach();
    if (fd < 0) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    if (write(fd, text, length) != (ssize_t)length)
        return 1;
    shutdown(fd, SHUT_WR);
    for (ssize_t got; (got = read(fd, text, sizeof(text))) > 0;)
        fwrite(text, 1, (size_t)got, stdout);
    return 0;
}

static int client(void)
{
    char text[TEXT];
    int fd = reach();
    if (fd < 0 || write(fd, "CLIENT\n", 7) != 7) {
        puts("no control daemon");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (;;) {
        ssize_t got = read(fd, text, sizeof(text) - 1);
        if (got <= 0) {
            puts("disconnected");
            return 1;
        }
        text[got] = '\0';
        fputs(text, stdout);
        usleep(100000);
        if (dprintf(fd, "alive %lld\n", (long long)time(NULL)) < 0) {
            puts("disconnected");
            return 1;
        }
    }
}

int main(int count, char **given)
{
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY"), *log = getenv("CUDA_MPS_LOG_DIRECTORY");
    snprintf(control.pipes, sizeof(control.pipes), "%s", pipes ? pipes : "/tmp/nvidia-mps");
    snprintf(control.log, sizeof(control.log), "%s", log ? log : "/var/log/nvidia-mps");
    const char *how = count > 1 ? given[1] : "";
    if (!strcmp(how, "--client"))
        return client();
    return !strcmp(how, "-d") || !strcmp(how, "-f") ? start(how[1] == 'd') : command();
}
