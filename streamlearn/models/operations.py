"""Operations: the TensorFlow operations that graphs may have, which compute numbers from numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["ALLOWED", "CALLING", "SAVER", "functions_of"]

# Operations that XLA compiles and TensorFlow calls stateless, without gradients, collectives and foreign calls.
_COMPUTING = """
Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Angle Any ApproxTopK ApproximateEqual
ArgMax ArgMin Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpace
BatchToSpaceND BesselI0e BesselI1e Betainc BiasAdd BiasAddV1 Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor
BroadcastArgs BroadcastTo Bucketize Cast Ceil Cholesky ClipByValue Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj
ConjugateTranspose Const ControlTrigger Conv Conv2D Conv3D Cos Cosh Cross Cumprod Cumsum CumulativeLogsumexp
DataFormatDimMap DataFormatVecPermute DenseBincount DepthToSpace DepthwiseConv2dNative Dequantize Diag DiagPart Digamma
Div DivNoNan DynamicPartition DynamicStitch Einsum Elu EmptyTensorList EnsureShape Equal Erf Erfc Erfinv Exp ExpandDims
Expm1 ExtractImagePatches FFT FFT2D FFT3D FakeParam FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars
FakeQuantWithMinMaxVarsPerChannel Fill Floor FloorDiv FloorMod FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 Gather
GatherNd GatherV2 Greater GreaterEqual HSVToRGB IFFT IFFT2D IFFT3D IRFFT IRFFT2D IRFFT3D Identity IdentityN Igamma
Igammac Imag InTopKV2 Inv Invert InvertPermutation IsFinite IsInf IsNan L2Loss LRN LeakyRelu LeftShift Less LessEqual
Lgamma LinSpace ListDiff Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound MatMul MatrixBandPart
MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixInverse MatrixSetDiag
MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve Max MaxPool MaxPool3D MaxPoolV2 Maximum Mean Min
Minimum MirrorPad Mod Mul MulNoNan Ndtri Neg NextAfter NoOp NonMaxSuppressionV3 NonMaxSuppressionV4 NotEqual OneHot
OnesLike Pack Pad PadV2 ParallelDynamicStitch PartitionedCall PlaceholderWithDefault Polygamma PopulationCount Pow
PreventGradient Prod Qr QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 RFFT RFFT2D RFFT3D
RGBToHSV Range Rank Real RealDiv Reciprocal Relu Relu6 Reshape ResizeBilinear ResizeNearestNeighbor Reverse
ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt ScatterNd SegmentMaxV2 SegmentMinV2 SegmentProdV2
SegmentSumV2 Select SelectV2 SelfAdjointEigV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh Size Slice Snapshot Softmax
SoftmaxCrossEntropyWithLogits Softplus Softsign SpaceToBatch SpaceToBatchND SpaceToDepth SparseMatMul
SparseSoftmaxCrossEntropyWithLogits SparseToDense Split SplitV Sqrt Square SquaredDifference Squeeze StatelessCase
StatelessIf StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomGetKeyCounter
StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform
StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2
StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessWhile StochasticCastToInt
StopGradient StridedSlice Sub Sum Svd Tan Tanh TensorListConcatV2 TensorListElementShape TensorListFromTensor
TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
TensorListSetItem TensorListSplit TensorListStack TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
TensorScatterUpdate TensorStridedSliceUpdate Tile ToBool TopKV2 Transpose TridiagonalMatMul TridiagonalSolve
TruncateDiv TruncateMod UniformDequantize UniformQuantize UniformQuantizedAdd UniformQuantizedClipByValue
UniformQuantizedConvolution UniformQuantizedDot UniformRequantize Unique UniqueV2 Unpack UnsortedSegmentMax
UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py Xlogy ZerosLike Zeta
"""
# TensorFlow calls these stateful for the functions that they call, which are checked themselves, or for messages.
CALLING = "Assert Case If Placeholder StatefulPartitionedCall While"
ALLOWED = frozenset(f"{_COMPUTING} {CALLING}".split())
# TensorFlow adds these to every SavedModel to save and restore variables; scores never call them.
SAVER = frozenset(
    ["MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename", "StaticRegexFullMatch", "StringJoin"]
)


def functions_of(nodes: Iterable[Any]) -> set[str]:
    """Return all names in nodes that may be functions: operations, and attributes that are functions."""
    names = set()
    for node in nodes:
        names.add(node.op)
        for attribute in node.attr.values():
            names.update((attribute.func.name, *(function.name for function in attribute.list.func)))
    return names
