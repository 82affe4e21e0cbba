// A library for LD_PRELOAD that makes a newer x86-64 processor report AVX2 as its last vector extension; see as_avx2.sh.
//
// arch_prctl(ARCH_SET_CPUID, 0) makes the instruction CPUID raise SIGSEGV. The handler executes it, clears the bits of what
// AVX2 processors lack, and continues behind it. Handlers that the program itself installs for SIGSEGV (Rust's runtime, GCC) are
// ignored.

#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

// Whether the handler below is installed for good.
static volatile sig_atomic_t is_started;

static long allow_cpuid(int allow) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allow); }

// Leaf numbers and bits: Intel SDM, volume 2, CPUID.
static void hide(uint32_t leaf, uint32_t subleaf, uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d) {
    if (leaf == 7 && subleaf == 0) {
        // AVX-512: F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS, VP2INTERSECT, FP16.
        *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        *c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        *d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(23));
        // AMX: bf16, tiles, int8.
        *d &= ~(BIT(22) | BIT(24) | BIT(25));
    } else if (leaf == 7 && subleaf == 1) {
        // AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA; all of EDX (AVX-VNNI-INT8, AVX10 and others).
        *a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
        *d = 0;
    } else if (leaf == 0xd && subleaf == 0) {
        // The state of masks, of the upper registers and of tiles.
        *a &= ~(BIT(5) | BIT(6) | BIT(7) | BIT(17) | BIT(18));
    } else if (leaf == 0x1d || leaf == 0x1e) {
        *a = *b = *c = *d = 0;
    }
}

static void on_segv(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
    if (info->si_code != SI_KERNEL || instruction[0] != 0x0f || instruction[1] != 0xa2) {
        // Another fault: it is raised again, with the default action.
        is_started = 0;
        signal(signal_number, SIG_DFL);
        return;
    }
    uint32_t leaf = registers[REG_RAX], subleaf = registers[REG_RCX], a, b, c, d;
    allow_cpuid(1);
    __cpuid_count(leaf, subleaf, a, b, c, d);
    allow_cpuid(0);
    hide(leaf, subleaf, &a, &b, &c, &d);
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

int sigaction(int signal_number, const struct sigaction *action, struct sigaction *old) {
    static int (*next)(int, const struct sigaction *, struct sigaction *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "sigaction");
    return next(signal_number, signal_number == SIGSEGV && is_started ? NULL : action, old);
}

sighandler_t signal(int signal_number, sighandler_t handler) {
    static sighandler_t (*next)(int, sighandler_t);
    if (next == NULL) next = dlsym(RTLD_NEXT, "signal");
    return signal_number == SIGSEGV && is_started ? SIG_DFL : next(signal_number, handler);
}

__attribute__((constructor(101))) static void start(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    is_started = 1;
    if (allow_cpuid(0) != 0) {
        static const char message[] = "avx2_cpuid: this processor or kernel cannot trap CPUID\n";
        (void)!write(2, message, sizeof message - 1);
        _exit(1);
    }
}
