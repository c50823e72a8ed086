#!/usr/bin/env python3
"""A remote worker with the stock grpcio client: it runs jobs of the kind py.upper.

In its folder, beside a pod (trapeze serve):

    apt-get install python3-grpcio protobuf-compiler protobuf-compiler-grpc libprotobuf-dev   # Debian, whose python is /usr/bin/python3
    protoc -I ../../remote -I /usr/include --python_out . --grpc_python_out . --plugin=protoc-gen-grpc_python=$(which grpc_python_plugin) trapeze/v1/workers.proto
    python3 worker.py 127.0.0.1:8080 [TOKEN]
    trapeze enqueue py.upper --args '{"text":"flying"}' --wait      # elsewhere, with DATABASE_URL

Ctrl-C ends it; what it ran then is run again when its lease is over.
"""
import json, sys, threading, time, uuid

import grpc

from trapeze.v1 import workers_pb2 as pb, workers_pb2_grpc as rpc


def upper(args):
    return {"text": args["text"].upper()}


HANDLERS = {"py.upper": upper}
SLOTS = 2
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


class Worker:
    def __init__(self, address, token):
        self.id, self.running, self.lock = str(uuid.uuid4()), {}, threading.Lock()
        self.pod = rpc.WorkersStub(grpc.insecure_channel(address))  # grpc.secure_channel beyond this machine
        self.who = [("authorization", "Bearer " + token)] if token else []
        self.every, self.now = 1.0, threading.Event()

    def listed(self):
        with self.lock:
            return [pb.Running(job_id=a.job_id, fence=a.fence, token=a.token) for a in self.running.values()]

    def beat(self):  # renews the lease, and acknowledges what has come
        while True:
            self.now.wait(self.every)
            self.now.clear()
            try:
                out = self.pod.Heartbeat(pb.HeartbeatRequest(worker_id=self.id, running=self.listed()), metadata=self.who, timeout=5)
                self.every = out.heartbeat_interval.ToMilliseconds() / 1000
            except grpc.RpcError as err:
                print("heartbeat:", err.code(), file=sys.stderr)

    def run(self, a):
        report = pb.ReportResultRequest(worker_id=self.id, job_id=a.job_id, fence=a.fence, token=a.token)
        try:
            report.done.result = json.dumps(HANDLERS[a.kind](json.loads(a.args))).encode()
        except Exception as err:
            report.failure.message = repr(err)
        while True:  # until somebody has answered: the same report twice is one end
            try:
                self.pod.ReportResult(report, metadata=self.who, timeout=10)
            except grpc.RpcError as err:
                if err.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    time.sleep(0.5)
                    continue
                print("result refused:", err.details(), file=sys.stderr)
            break
        with self.lock:
            del self.running[a.job_id, a.fence]
        self.now.set()

    def stream(self):
        threading.Thread(target=self.beat, daemon=True).start()
        while True:
            try:
                request = pb.StreamJobsRequest(worker_id=self.id, name="python", topics=list(HANDLERS), slots=SLOTS, running=self.listed())
                for a in self.pod.StreamJobs(request, metadata=self.who):
                    with self.lock:
                        self.running[a.job_id, a.fence] = a
                    self.now.set()
                    threading.Thread(target=self.run, args=(a,), daemon=True).start()
            except grpc.RpcError as err:
                if err.code() in REFUSED:
                    sys.exit(f"the pod refuses the worker: {err.details()}")
                print("stream:", err.code(), err.details(), file=sys.stderr)
                if err.code() == grpc.StatusCode.ABORTED:  # the lease ran out: begin anew
                    self.id = str(uuid.uuid4())
            time.sleep(0.5)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: worker.py HOST:PORT [TOKEN]")
    try:
        Worker(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "").stream()
    except KeyboardInterrupt:
        pass
