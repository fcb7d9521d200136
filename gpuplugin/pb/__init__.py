"""Generated messages, servicers and stubs of the node APIs; made from proto/ by `python proto/generate.py`.

Committed, so that running needs no compiler, and in a package of its own, so that type checkers, linters and
readers can leave it alone. One module an API version: each adds 1 to 3 ms to the start and some ten kB, where grpc
itself takes 150 ms and 27 MB, so import only those in use, and none where no RPC is made or served.
Servicers and stubs are typed for grpc.aio alone:

    class Driver(dra_v1_pb2_grpc.DRAPluginServicer):
        async def NodePrepareResources(
            self,
            request: dra_v1_pb2.NodePrepareResourcesRequest,
            context: grpc.aio.ServicerContext[Any, Any],
        ) -> dra_v1_pb2.NodePrepareResourcesResponse: ...

Stream methods are async generators. `grpc.aio.ServicerContext` takes parameters in type stubs only: such modules
start with `from __future__ import annotations`.
"""
