"""The server of the xllamacpp wheel: FILE PORT THREADS SLOTS CONTEXT."""

import signal
import sys

import xllamacpp


def main() -> None:
    file, *numbers = sys.argv[1:]
    port, threads, slots, context = map(int, numbers)
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.port = port
    params.n_parallel = slots
    params.n_ctx = context
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    main()
