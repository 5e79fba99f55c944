//==============================================================================
//
//  Copyright (c) 2020-2023 Qualcomm Technologies, Inc.
//  All Rights Reserved.
//  Confidential and Proprietary - Qualcomm Technologies, Inc.
//
//==============================================================================

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "QnnInterface.h"

#define VALIDATE(res, value) \
   do { \
      if (res == 0 || res == QNN_COMMON_ERROR_NOT_SUPPORTED) \
      { \
         res = value; \
         if (res != 0) \
         { \
            if (res == QNN_COMMON_ERROR_NOT_SUPPORTED) \
            { \
               printf("WARNING! Line %d QNN feature/API not supported\n", __LINE__); \
            } else { \
               printf("ERROR! Line %d with error value: %d\n", __LINE__, (unsigned int)error); \
            } \
         } \
      } \
   } \
   while(0)

int main(int argc, char** argv) {
   Qnn_ErrorHandle_t error = 0;
   QnnLog_Level_t logLevel = QNN_LOG_LEVEL_ERROR;
   int logging = 0;
   for (int i = 1; i < argc; i++) {
     char* arg = argv[i];
     if (!strcmp("--logging", arg) || !strcmp("-l", arg)) {
       logging = 1;
       if (i+1 == argc) {
         printf("No log level provided, defaulting to QNN_LOG_LEVEL_ERROR\n");
         break;
       }
       char* value = argv[++i];
       if (!strcmp("error", value)) {
         logLevel = QNN_LOG_LEVEL_ERROR;
       } else if (!strcmp("warn", value)) {
         logLevel = QNN_LOG_LEVEL_WARN;
       } else if (!strcmp("info", value)) {
         logLevel = QNN_LOG_LEVEL_INFO;
       } else if (!strcmp("debug", value)) {
         logLevel = QNN_LOG_LEVEL_DEBUG;
       } else if (!strcmp("verbose", value)) {
         logLevel = QNN_LOG_LEVEL_VERBOSE;
       } else {
         printf("WARNING: Unknown log level provided: %s, defaulting to QNN_LOG_LEVEL_ERROR\n", value);
       }
     } else {
       printf("Usage: %s [options]\n\n"
              "-l <level>, --logging <level>      Enable logging, acceptable levels are: error,warn,info,debug,verbose\n", argv[0]);
       return -1;
     }
   }

   FILE* fp = fopen("params.bin", "rb");
   if (!fp) {
     error = -1;
     printf("ERROR! Could not open params.bin, ensure this file is in the current working directory when executing this program.\n");
     return error;
   }

   const QnnInterface_t** providerList = NULL;
   uint32_t numProviders;
   VALIDATE(error, QnnInterface_getProviders(&providerList, &numProviders));
   QNN_INTERFACE_VER_TYPE interface = providerList[0]->QNN_INTERFACE_VER_NAME;

   Qnn_LogHandle_t loghandle= NULL;
   if (logging) {
     VALIDATE(error, interface.logCreate(NULL, logLevel, &loghandle));
   }

   const QnnBackend_Config_t* backend_0_config_0[] = {NULL};
   Qnn_BackendHandle_t backend_0;
   VALIDATE(error, interface.backendCreate(loghandle, backend_0_config_0, &backend_0));

   VALIDATE(error, interface.propertyHasCapability((QnnProperty_Key_t)1501));

   const QnnDevice_Config_t* device_0_config_0[] = {NULL};
   Qnn_DeviceHandle_t device_0;
   VALIDATE(error, interface.deviceCreate(loghandle, device_0_config_0, &device_0));

   const QnnContext_Config_t* context_0_config_0[] = {NULL};
   Qnn_ContextHandle_t context_0;
   VALIDATE(error, interface.contextCreate(backend_0, device_0, context_0_config_0, &context_0));

   Qnn_Param_t* fl_0_params = NULL;
   uint32_t fl_0_input_0_dims[] = {1, 16, 1, 1};
   Qnn_QuantizeParams_t fl_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t fl_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fl_0_input_0_v1 = {0, "gap_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fl_0_input_0_quantizeParams, 4, fl_0_input_0_dims, (Qnn_TensorMemType_t)0, fl_0_input_0_clientBuf};
   Qnn_Tensor_t fl_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = fl_0_input_0_v1};

   Qnn_Tensor_t fl_0_inputs[] = {fl_0_input_0};
   uint32_t fl_0_output_0_dims[] = {1, 16};
   Qnn_QuantizeParams_t fl_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t fl_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fl_0_output_0_v1 = {0, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fl_0_output_0_quantizeParams, 2, fl_0_output_0_dims, (Qnn_TensorMemType_t)0, fl_0_output_0_clientBuf};
   Qnn_Tensor_t fl_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = fl_0_output_0_v1};

   Qnn_Tensor_t fl_0_outputs[] = {fl_0_output_0};
   Qnn_OpConfigV1_t fl_0_v1 = {"fl", "qti.aisw", "Reshape", 0, fl_0_params, 1, fl_0_inputs, 1, fl_0_outputs};
   Qnn_OpConfig_t fl_0 = {(Qnn_OpConfigVersion_t)1, .v1 = fl_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, fl_0));

   Qnn_Param_t* fc_0_params = NULL;
   uint32_t fc_0_input_0_dims[] = {1, 16};
   Qnn_QuantizeParams_t fc_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t fc_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fc_0_input_0_v1 = {0, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fc_0_input_0_quantizeParams, 2, fc_0_input_0_dims, (Qnn_TensorMemType_t)0, fc_0_input_0_clientBuf};
   Qnn_Tensor_t fc_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = fc_0_input_0_v1};

   uint32_t fc_0_input_1_dims[] = {10, 16};
   Qnn_QuantizeParams_t fc_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00614955463, -123}};
   static uint8_t fc_0_input_1_data[160];
   fread(fc_0_input_1_data, 1, 160, fp);
   Qnn_ClientBuffer_t fc_0_input_1_clientBuf = {(void*)fc_0_input_1_data, 160};
   Qnn_TensorV1_t fc_0_input_1_v1 = {0, "fw_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, fc_0_input_1_quantizeParams, 2, fc_0_input_1_dims, (Qnn_TensorMemType_t)0, fc_0_input_1_clientBuf};
   Qnn_Tensor_t fc_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = fc_0_input_1_v1};

   uint32_t fc_0_input_2_dims[] = {10};
   Qnn_QuantizeParams_t fc_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.10261452e-07, 0}};
   static int32_t fc_0_input_2_data[10];
   fread(fc_0_input_2_data, 4, 10, fp);
   Qnn_ClientBuffer_t fc_0_input_2_clientBuf = {(void*)fc_0_input_2_data, 40};
   Qnn_TensorV1_t fc_0_input_2_v1 = {0, "fb_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, fc_0_input_2_quantizeParams, 1, fc_0_input_2_dims, (Qnn_TensorMemType_t)0, fc_0_input_2_clientBuf};
   Qnn_Tensor_t fc_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = fc_0_input_2_v1};

   Qnn_Tensor_t fc_0_inputs[] = {fc_0_input_0, fc_0_input_1, fc_0_input_2};
   uint32_t fc_0_output_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t fc_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000110485802, -35167}};
   Qnn_ClientBuffer_t fc_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fc_0_output_0_v1 = {0, "y_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fc_0_output_0_quantizeParams, 2, fc_0_output_0_dims, (Qnn_TensorMemType_t)0, fc_0_output_0_clientBuf};
   Qnn_Tensor_t fc_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = fc_0_output_0_v1};

   Qnn_Tensor_t fc_0_outputs[] = {fc_0_output_0};
   Qnn_OpConfigV1_t fc_0_v1 = {"fc", "qti.aisw", "FullyConnected", 0, fc_0_params, 3, fc_0_inputs, 1, fc_0_outputs};
   Qnn_OpConfig_t fc_0 = {(Qnn_OpConfigVersion_t)1, .v1 = fc_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, fc_0));

   uint32_t Transpose_token_29_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t Transpose_token_29_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t Transpose_token_29_0_param_0_tensor_data[4];
   fread(Transpose_token_29_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t Transpose_token_29_0_param_0_tensor_clientBuf = {(void*)Transpose_token_29_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t Transpose_token_29_0_param_0_tensor_v1 = {0, "Transpose_token_29_59_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, Transpose_token_29_0_param_0_tensor_quantizeParams, 1, Transpose_token_29_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, Transpose_token_29_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t Transpose_token_29_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_29_0_param_0_tensor_v1};
   Qnn_Param_t Transpose_token_29_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = Transpose_token_29_0_param_0_tensor};

   Qnn_Param_t Transpose_token_29_0_params[] = {Transpose_token_29_0_param_0};
   uint32_t Transpose_token_29_0_input_0_dims[] = {1, 3, 64, 64};
   Qnn_QuantizeParams_t Transpose_token_29_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t Transpose_token_29_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_29_0_input_0_v1 = {0, "x_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, Transpose_token_29_0_input_0_quantizeParams, 4, Transpose_token_29_0_input_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_29_0_input_0_clientBuf};
   Qnn_Tensor_t Transpose_token_29_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_29_0_input_0_v1};

   Qnn_Tensor_t Transpose_token_29_0_inputs[] = {Transpose_token_29_0_input_0};
   uint32_t Transpose_token_29_0_output_0_dims[] = {1, 64, 64, 3};
   Qnn_QuantizeParams_t Transpose_token_29_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t Transpose_token_29_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_29_0_output_0_v1 = {0, "QuantizeLinear_token_40_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, Transpose_token_29_0_output_0_quantizeParams, 4, Transpose_token_29_0_output_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_29_0_output_0_clientBuf};
   Qnn_Tensor_t Transpose_token_29_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_29_0_output_0_v1};

   Qnn_Tensor_t Transpose_token_29_0_outputs[] = {Transpose_token_29_0_output_0};
   Qnn_OpConfigV1_t Transpose_token_29_0_v1 = {"Transpose_token_29", "qti.aisw", "Transpose", 1, Transpose_token_29_0_params, 1, Transpose_token_29_0_inputs, 1, Transpose_token_29_0_outputs};
   Qnn_OpConfig_t Transpose_token_29_0 = {(Qnn_OpConfigVersion_t)1, .v1 = Transpose_token_29_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, Transpose_token_29_0));

   uint32_t conv0_token_1_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv0_token_1_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv0_token_1_0_param_0_tensor_data[2];
   fread(conv0_token_1_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv0_token_1_0_param_0_tensor_clientBuf = {(void*)conv0_token_1_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t conv0_token_1_0_param_0_tensor_v1 = {0, "conv0_token_1_37_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv0_token_1_0_param_0_tensor_quantizeParams, 1, conv0_token_1_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_param_0_tensor_v1};
   Qnn_Param_t conv0_token_1_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = conv0_token_1_0_param_0_tensor};

   uint32_t conv0_token_1_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv0_token_1_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv0_token_1_0_param_1_tensor_data[2];
   fread(conv0_token_1_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv0_token_1_0_param_1_tensor_clientBuf = {(void*)conv0_token_1_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t conv0_token_1_0_param_1_tensor_v1 = {0, "conv0_token_1_37_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv0_token_1_0_param_1_tensor_quantizeParams, 1, conv0_token_1_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_param_1_tensor_v1};
   Qnn_Param_t conv0_token_1_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = conv0_token_1_0_param_1_tensor};

   uint32_t conv0_token_1_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t conv0_token_1_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv0_token_1_0_param_2_tensor_data[4];
   fread(conv0_token_1_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t conv0_token_1_0_param_2_tensor_clientBuf = {(void*)conv0_token_1_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t conv0_token_1_0_param_2_tensor_v1 = {0, "conv0_token_1_37_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv0_token_1_0_param_2_tensor_quantizeParams, 2, conv0_token_1_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_param_2_tensor_v1};
   Qnn_Param_t conv0_token_1_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = conv0_token_1_0_param_2_tensor};

   Qnn_Scalar_t conv0_token_1_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t conv0_token_1_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = conv0_token_1_0_param_3_scalar};

   Qnn_Scalar_t conv0_token_1_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t conv0_token_1_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = conv0_token_1_0_param_4_scalar};

   Qnn_Param_t conv0_token_1_0_params[] = {conv0_token_1_0_param_0, conv0_token_1_0_param_1, conv0_token_1_0_param_2, conv0_token_1_0_param_3, conv0_token_1_0_param_4};
   uint32_t conv0_token_1_0_input_0_dims[] = {1, 64, 64, 3};
   Qnn_QuantizeParams_t conv0_token_1_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t conv0_token_1_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv0_token_1_0_input_0_v1 = {0, "QuantizeLinear_token_40_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv0_token_1_0_input_0_quantizeParams, 4, conv0_token_1_0_input_0_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_input_0_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_input_0_v1};

   uint32_t conv0_token_1_0_input_1_dims[] = {3, 3, 3, 16};
   Qnn_QuantizeParams_t conv0_token_1_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00536338193, -141}};
   static uint8_t conv0_token_1_0_input_1_data[432];
   fread(conv0_token_1_0_input_1_data, 1, 432, fp);
   Qnn_ClientBuffer_t conv0_token_1_0_input_1_clientBuf = {(void*)conv0_token_1_0_input_1_data, 432};
   Qnn_TensorV1_t conv0_token_1_0_input_1_v1 = {0, "w0_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, conv0_token_1_0_input_1_quantizeParams, 4, conv0_token_1_0_input_1_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_input_1_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_input_1_v1};

   uint32_t conv0_token_1_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t conv0_token_1_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {7.20815137e-07, 0}};
   static int32_t conv0_token_1_0_input_2_data[16];
   fread(conv0_token_1_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t conv0_token_1_0_input_2_clientBuf = {(void*)conv0_token_1_0_input_2_data, 64};
   Qnn_TensorV1_t conv0_token_1_0_input_2_v1 = {0, "b0_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, conv0_token_1_0_input_2_quantizeParams, 1, conv0_token_1_0_input_2_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_input_2_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_input_2_v1};

   Qnn_Tensor_t conv0_token_1_0_inputs[] = {conv0_token_1_0_input_0, conv0_token_1_0_input_1, conv0_token_1_0_input_2};
   uint32_t conv0_token_1_0_output_0_dims[] = {1, 32, 32, 16};
   Qnn_QuantizeParams_t conv0_token_1_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {8.83037137e-05, 0}};
   Qnn_ClientBuffer_t conv0_token_1_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv0_token_1_0_output_0_v1 = {0, "r0_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv0_token_1_0_output_0_quantizeParams, 4, conv0_token_1_0_output_0_dims, (Qnn_TensorMemType_t)0, conv0_token_1_0_output_0_clientBuf};
   Qnn_Tensor_t conv0_token_1_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = conv0_token_1_0_output_0_v1};

   Qnn_Tensor_t conv0_token_1_0_outputs[] = {conv0_token_1_0_output_0};
   Qnn_OpConfigV1_t conv0_token_1_0_v1 = {"conv0_token_1", "qti.aisw", "Conv2d", 5, conv0_token_1_0_params, 3, conv0_token_1_0_inputs, 1, conv0_token_1_0_outputs};
   Qnn_OpConfig_t conv0_token_1_0 = {(Qnn_OpConfigVersion_t)1, .v1 = conv0_token_1_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, conv0_token_1_0));

   uint32_t conv1_token_7_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv1_token_7_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv1_token_7_0_param_0_tensor_data[2];
   fread(conv1_token_7_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv1_token_7_0_param_0_tensor_clientBuf = {(void*)conv1_token_7_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t conv1_token_7_0_param_0_tensor_v1 = {0, "conv1_token_7_42_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv1_token_7_0_param_0_tensor_quantizeParams, 1, conv1_token_7_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_param_0_tensor_v1};
   Qnn_Param_t conv1_token_7_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = conv1_token_7_0_param_0_tensor};

   uint32_t conv1_token_7_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv1_token_7_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv1_token_7_0_param_1_tensor_data[2];
   fread(conv1_token_7_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv1_token_7_0_param_1_tensor_clientBuf = {(void*)conv1_token_7_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t conv1_token_7_0_param_1_tensor_v1 = {0, "conv1_token_7_42_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv1_token_7_0_param_1_tensor_quantizeParams, 1, conv1_token_7_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_param_1_tensor_v1};
   Qnn_Param_t conv1_token_7_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = conv1_token_7_0_param_1_tensor};

   uint32_t conv1_token_7_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t conv1_token_7_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv1_token_7_0_param_2_tensor_data[4];
   fread(conv1_token_7_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t conv1_token_7_0_param_2_tensor_clientBuf = {(void*)conv1_token_7_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t conv1_token_7_0_param_2_tensor_v1 = {0, "conv1_token_7_42_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv1_token_7_0_param_2_tensor_quantizeParams, 2, conv1_token_7_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_param_2_tensor_v1};
   Qnn_Param_t conv1_token_7_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = conv1_token_7_0_param_2_tensor};

   Qnn_Scalar_t conv1_token_7_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t conv1_token_7_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = conv1_token_7_0_param_3_scalar};

   Qnn_Scalar_t conv1_token_7_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t conv1_token_7_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = conv1_token_7_0_param_4_scalar};

   Qnn_Param_t conv1_token_7_0_params[] = {conv1_token_7_0_param_0, conv1_token_7_0_param_1, conv1_token_7_0_param_2, conv1_token_7_0_param_3, conv1_token_7_0_param_4};
   uint32_t conv1_token_7_0_input_0_dims[] = {1, 32, 32, 16};
   Qnn_QuantizeParams_t conv1_token_7_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {8.83037137e-05, 0}};
   Qnn_ClientBuffer_t conv1_token_7_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv1_token_7_0_input_0_v1 = {0, "r0_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv1_token_7_0_input_0_quantizeParams, 4, conv1_token_7_0_input_0_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_input_0_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_input_0_v1};

   uint32_t conv1_token_7_0_input_1_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t conv1_token_7_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00531288004, -147}};
   static uint8_t conv1_token_7_0_input_1_data[2304];
   fread(conv1_token_7_0_input_1_data, 1, 2304, fp);
   Qnn_ClientBuffer_t conv1_token_7_0_input_1_clientBuf = {(void*)conv1_token_7_0_input_1_data, 2304};
   Qnn_TensorV1_t conv1_token_7_0_input_1_v1 = {0, "w1_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, conv1_token_7_0_input_1_quantizeParams, 4, conv1_token_7_0_input_1_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_input_1_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_input_1_v1};

   uint32_t conv1_token_7_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t conv1_token_7_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {4.69147039e-07, 0}};
   static int32_t conv1_token_7_0_input_2_data[16];
   fread(conv1_token_7_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t conv1_token_7_0_input_2_clientBuf = {(void*)conv1_token_7_0_input_2_data, 64};
   Qnn_TensorV1_t conv1_token_7_0_input_2_v1 = {0, "b1_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, conv1_token_7_0_input_2_quantizeParams, 1, conv1_token_7_0_input_2_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_input_2_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_input_2_v1};

   Qnn_Tensor_t conv1_token_7_0_inputs[] = {conv1_token_7_0_input_0, conv1_token_7_0_input_1, conv1_token_7_0_input_2};
   uint32_t conv1_token_7_0_output_0_dims[] = {1, 16, 16, 16};
   Qnn_QuantizeParams_t conv1_token_7_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000128089538, 0}};
   Qnn_ClientBuffer_t conv1_token_7_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv1_token_7_0_output_0_v1 = {0, "r1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv1_token_7_0_output_0_quantizeParams, 4, conv1_token_7_0_output_0_dims, (Qnn_TensorMemType_t)0, conv1_token_7_0_output_0_clientBuf};
   Qnn_Tensor_t conv1_token_7_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = conv1_token_7_0_output_0_v1};

   Qnn_Tensor_t conv1_token_7_0_outputs[] = {conv1_token_7_0_output_0};
   Qnn_OpConfigV1_t conv1_token_7_0_v1 = {"conv1_token_7", "qti.aisw", "Conv2d", 5, conv1_token_7_0_params, 3, conv1_token_7_0_inputs, 1, conv1_token_7_0_outputs};
   Qnn_OpConfig_t conv1_token_7_0 = {(Qnn_OpConfigVersion_t)1, .v1 = conv1_token_7_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, conv1_token_7_0));

   uint32_t conv2_token_13_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv2_token_13_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv2_token_13_0_param_0_tensor_data[2];
   fread(conv2_token_13_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv2_token_13_0_param_0_tensor_clientBuf = {(void*)conv2_token_13_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t conv2_token_13_0_param_0_tensor_v1 = {0, "conv2_token_13_47_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv2_token_13_0_param_0_tensor_quantizeParams, 1, conv2_token_13_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_param_0_tensor_v1};
   Qnn_Param_t conv2_token_13_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = conv2_token_13_0_param_0_tensor};

   uint32_t conv2_token_13_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv2_token_13_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv2_token_13_0_param_1_tensor_data[2];
   fread(conv2_token_13_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv2_token_13_0_param_1_tensor_clientBuf = {(void*)conv2_token_13_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t conv2_token_13_0_param_1_tensor_v1 = {0, "conv2_token_13_47_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv2_token_13_0_param_1_tensor_quantizeParams, 1, conv2_token_13_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_param_1_tensor_v1};
   Qnn_Param_t conv2_token_13_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = conv2_token_13_0_param_1_tensor};

   uint32_t conv2_token_13_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t conv2_token_13_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv2_token_13_0_param_2_tensor_data[4];
   fread(conv2_token_13_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t conv2_token_13_0_param_2_tensor_clientBuf = {(void*)conv2_token_13_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t conv2_token_13_0_param_2_tensor_v1 = {0, "conv2_token_13_47_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv2_token_13_0_param_2_tensor_quantizeParams, 2, conv2_token_13_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_param_2_tensor_v1};
   Qnn_Param_t conv2_token_13_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = conv2_token_13_0_param_2_tensor};

   Qnn_Scalar_t conv2_token_13_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t conv2_token_13_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = conv2_token_13_0_param_3_scalar};

   Qnn_Scalar_t conv2_token_13_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t conv2_token_13_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = conv2_token_13_0_param_4_scalar};

   Qnn_Param_t conv2_token_13_0_params[] = {conv2_token_13_0_param_0, conv2_token_13_0_param_1, conv2_token_13_0_param_2, conv2_token_13_0_param_3, conv2_token_13_0_param_4};
   uint32_t conv2_token_13_0_input_0_dims[] = {1, 16, 16, 16};
   Qnn_QuantizeParams_t conv2_token_13_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000128089538, 0}};
   Qnn_ClientBuffer_t conv2_token_13_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv2_token_13_0_input_0_v1 = {0, "r1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv2_token_13_0_input_0_quantizeParams, 4, conv2_token_13_0_input_0_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_input_0_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_input_0_v1};

   uint32_t conv2_token_13_0_input_1_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t conv2_token_13_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00479907077, -119}};
   static uint8_t conv2_token_13_0_input_1_data[2304];
   fread(conv2_token_13_0_input_1_data, 1, 2304, fp);
   Qnn_ClientBuffer_t conv2_token_13_0_input_1_clientBuf = {(void*)conv2_token_13_0_input_1_data, 2304};
   Qnn_TensorV1_t conv2_token_13_0_input_1_v1 = {0, "w2_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, conv2_token_13_0_input_1_quantizeParams, 4, conv2_token_13_0_input_1_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_input_1_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_input_1_v1};

   uint32_t conv2_token_13_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t conv2_token_13_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.14710757e-07, 0}};
   static int32_t conv2_token_13_0_input_2_data[16];
   fread(conv2_token_13_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t conv2_token_13_0_input_2_clientBuf = {(void*)conv2_token_13_0_input_2_data, 64};
   Qnn_TensorV1_t conv2_token_13_0_input_2_v1 = {0, "b2_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, conv2_token_13_0_input_2_quantizeParams, 1, conv2_token_13_0_input_2_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_input_2_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_input_2_v1};

   Qnn_Tensor_t conv2_token_13_0_inputs[] = {conv2_token_13_0_input_0, conv2_token_13_0_input_1, conv2_token_13_0_input_2};
   uint32_t conv2_token_13_0_output_0_dims[] = {1, 8, 8, 16};
   Qnn_QuantizeParams_t conv2_token_13_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000146656574, 0}};
   Qnn_ClientBuffer_t conv2_token_13_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv2_token_13_0_output_0_v1 = {0, "r2_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv2_token_13_0_output_0_quantizeParams, 4, conv2_token_13_0_output_0_dims, (Qnn_TensorMemType_t)0, conv2_token_13_0_output_0_clientBuf};
   Qnn_Tensor_t conv2_token_13_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = conv2_token_13_0_output_0_v1};

   Qnn_Tensor_t conv2_token_13_0_outputs[] = {conv2_token_13_0_output_0};
   Qnn_OpConfigV1_t conv2_token_13_0_v1 = {"conv2_token_13", "qti.aisw", "Conv2d", 5, conv2_token_13_0_params, 3, conv2_token_13_0_inputs, 1, conv2_token_13_0_outputs};
   Qnn_OpConfig_t conv2_token_13_0 = {(Qnn_OpConfigVersion_t)1, .v1 = conv2_token_13_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, conv2_token_13_0));

   uint32_t conv3_token_19_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv3_token_19_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv3_token_19_0_param_0_tensor_data[2];
   fread(conv3_token_19_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv3_token_19_0_param_0_tensor_clientBuf = {(void*)conv3_token_19_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t conv3_token_19_0_param_0_tensor_v1 = {0, "conv3_token_19_52_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv3_token_19_0_param_0_tensor_quantizeParams, 1, conv3_token_19_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_param_0_tensor_v1};
   Qnn_Param_t conv3_token_19_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = conv3_token_19_0_param_0_tensor};

   uint32_t conv3_token_19_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t conv3_token_19_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv3_token_19_0_param_1_tensor_data[2];
   fread(conv3_token_19_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t conv3_token_19_0_param_1_tensor_clientBuf = {(void*)conv3_token_19_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t conv3_token_19_0_param_1_tensor_v1 = {0, "conv3_token_19_52_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv3_token_19_0_param_1_tensor_quantizeParams, 1, conv3_token_19_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_param_1_tensor_v1};
   Qnn_Param_t conv3_token_19_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = conv3_token_19_0_param_1_tensor};

   uint32_t conv3_token_19_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t conv3_token_19_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t conv3_token_19_0_param_2_tensor_data[4];
   fread(conv3_token_19_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t conv3_token_19_0_param_2_tensor_clientBuf = {(void*)conv3_token_19_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t conv3_token_19_0_param_2_tensor_v1 = {0, "conv3_token_19_52_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, conv3_token_19_0_param_2_tensor_quantizeParams, 2, conv3_token_19_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_param_2_tensor_v1};
   Qnn_Param_t conv3_token_19_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = conv3_token_19_0_param_2_tensor};

   Qnn_Scalar_t conv3_token_19_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t conv3_token_19_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = conv3_token_19_0_param_3_scalar};

   Qnn_Scalar_t conv3_token_19_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t conv3_token_19_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = conv3_token_19_0_param_4_scalar};

   Qnn_Param_t conv3_token_19_0_params[] = {conv3_token_19_0_param_0, conv3_token_19_0_param_1, conv3_token_19_0_param_2, conv3_token_19_0_param_3, conv3_token_19_0_param_4};
   uint32_t conv3_token_19_0_input_0_dims[] = {1, 8, 8, 16};
   Qnn_QuantizeParams_t conv3_token_19_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000146656574, 0}};
   Qnn_ClientBuffer_t conv3_token_19_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv3_token_19_0_input_0_v1 = {0, "r2_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv3_token_19_0_input_0_quantizeParams, 4, conv3_token_19_0_input_0_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_input_0_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_input_0_v1};

   uint32_t conv3_token_19_0_input_1_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t conv3_token_19_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00511107361, -132}};
   static uint8_t conv3_token_19_0_input_1_data[2304];
   fread(conv3_token_19_0_input_1_data, 1, 2304, fp);
   Qnn_ClientBuffer_t conv3_token_19_0_input_1_clientBuf = {(void*)conv3_token_19_0_input_1_data, 2304};
   Qnn_TensorV1_t conv3_token_19_0_input_1_v1 = {0, "w3_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, conv3_token_19_0_input_1_quantizeParams, 4, conv3_token_19_0_input_1_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_input_1_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_input_1_v1};

   uint32_t conv3_token_19_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t conv3_token_19_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {7.49572564e-07, 0}};
   static int32_t conv3_token_19_0_input_2_data[16];
   fread(conv3_token_19_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t conv3_token_19_0_input_2_clientBuf = {(void*)conv3_token_19_0_input_2_data, 64};
   Qnn_TensorV1_t conv3_token_19_0_input_2_v1 = {0, "b3_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, conv3_token_19_0_input_2_quantizeParams, 1, conv3_token_19_0_input_2_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_input_2_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_input_2_v1};

   Qnn_Tensor_t conv3_token_19_0_inputs[] = {conv3_token_19_0_input_0, conv3_token_19_0_input_1, conv3_token_19_0_input_2};
   uint32_t conv3_token_19_0_output_0_dims[] = {1, 4, 4, 16};
   Qnn_QuantizeParams_t conv3_token_19_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000209509963, 0}};
   Qnn_ClientBuffer_t conv3_token_19_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t conv3_token_19_0_output_0_v1 = {0, "r3_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, conv3_token_19_0_output_0_quantizeParams, 4, conv3_token_19_0_output_0_dims, (Qnn_TensorMemType_t)0, conv3_token_19_0_output_0_clientBuf};
   Qnn_Tensor_t conv3_token_19_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = conv3_token_19_0_output_0_v1};

   Qnn_Tensor_t conv3_token_19_0_outputs[] = {conv3_token_19_0_output_0};
   Qnn_OpConfigV1_t conv3_token_19_0_v1 = {"conv3_token_19", "qti.aisw", "Conv2d", 5, conv3_token_19_0_params, 3, conv3_token_19_0_inputs, 1, conv3_token_19_0_outputs};
   Qnn_OpConfig_t conv3_token_19_0 = {(Qnn_OpConfigVersion_t)1, .v1 = conv3_token_19_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, conv3_token_19_0));

   uint32_t gap_token_26_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t gap_token_26_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t gap_token_26_0_param_0_tensor_data[2];
   fread(gap_token_26_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t gap_token_26_0_param_0_tensor_clientBuf = {(void*)gap_token_26_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t gap_token_26_0_param_0_tensor_v1 = {0, "gap_token_26_57_filter_size", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, gap_token_26_0_param_0_tensor_quantizeParams, 1, gap_token_26_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, gap_token_26_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t gap_token_26_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = gap_token_26_0_param_0_tensor_v1};
   Qnn_Param_t gap_token_26_0_param_0 = {(Qnn_ParamType_t)1, "filter_size", .tensorParam = gap_token_26_0_param_0_tensor};

   uint32_t gap_token_26_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t gap_token_26_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t gap_token_26_0_param_1_tensor_data[2];
   fread(gap_token_26_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t gap_token_26_0_param_1_tensor_clientBuf = {(void*)gap_token_26_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t gap_token_26_0_param_1_tensor_v1 = {0, "gap_token_26_57_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, gap_token_26_0_param_1_tensor_quantizeParams, 1, gap_token_26_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, gap_token_26_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t gap_token_26_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = gap_token_26_0_param_1_tensor_v1};
   Qnn_Param_t gap_token_26_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = gap_token_26_0_param_1_tensor};

   uint32_t gap_token_26_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t gap_token_26_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t gap_token_26_0_param_2_tensor_data[4];
   fread(gap_token_26_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t gap_token_26_0_param_2_tensor_clientBuf = {(void*)gap_token_26_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t gap_token_26_0_param_2_tensor_v1 = {0, "gap_token_26_57_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, gap_token_26_0_param_2_tensor_quantizeParams, 2, gap_token_26_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, gap_token_26_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t gap_token_26_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = gap_token_26_0_param_2_tensor_v1};
   Qnn_Param_t gap_token_26_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = gap_token_26_0_param_2_tensor};

   Qnn_Scalar_t gap_token_26_0_param_3_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t gap_token_26_0_param_3 = {(Qnn_ParamType_t)0, "count_pad_for_edges", .scalarParam = gap_token_26_0_param_3_scalar};

   Qnn_Param_t gap_token_26_0_params[] = {gap_token_26_0_param_0, gap_token_26_0_param_1, gap_token_26_0_param_2, gap_token_26_0_param_3};
   uint32_t gap_token_26_0_input_0_dims[] = {1, 4, 4, 16};
   Qnn_QuantizeParams_t gap_token_26_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000209509963, 0}};
   Qnn_ClientBuffer_t gap_token_26_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t gap_token_26_0_input_0_v1 = {0, "r3_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, gap_token_26_0_input_0_quantizeParams, 4, gap_token_26_0_input_0_dims, (Qnn_TensorMemType_t)0, gap_token_26_0_input_0_clientBuf};
   Qnn_Tensor_t gap_token_26_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = gap_token_26_0_input_0_v1};

   Qnn_Tensor_t gap_token_26_0_inputs[] = {gap_token_26_0_input_0};
   uint32_t gap_token_26_0_output_0_dims[] = {1, 1, 1, 16};
   Qnn_QuantizeParams_t gap_token_26_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t gap_token_26_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t gap_token_26_0_output_0_v1 = {0, "gap_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, gap_token_26_0_output_0_quantizeParams, 4, gap_token_26_0_output_0_dims, (Qnn_TensorMemType_t)0, gap_token_26_0_output_0_clientBuf};
   Qnn_Tensor_t gap_token_26_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = gap_token_26_0_output_0_v1};

   Qnn_Tensor_t gap_token_26_0_outputs[] = {gap_token_26_0_output_0};
   Qnn_OpConfigV1_t gap_token_26_0_v1 = {"gap_token_26", "qti.aisw", "PoolAvg2d", 4, gap_token_26_0_params, 1, gap_token_26_0_inputs, 1, gap_token_26_0_outputs};
   Qnn_OpConfig_t gap_token_26_0 = {(Qnn_OpConfigVersion_t)1, .v1 = gap_token_26_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, gap_token_26_0));

   uint32_t Transpose_token_39_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t Transpose_token_39_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t Transpose_token_39_0_param_0_tensor_data[4];
   fread(Transpose_token_39_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t Transpose_token_39_0_param_0_tensor_clientBuf = {(void*)Transpose_token_39_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t Transpose_token_39_0_param_0_tensor_v1 = {0, "Transpose_token_39_69_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, Transpose_token_39_0_param_0_tensor_quantizeParams, 1, Transpose_token_39_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, Transpose_token_39_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t Transpose_token_39_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_39_0_param_0_tensor_v1};
   Qnn_Param_t Transpose_token_39_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = Transpose_token_39_0_param_0_tensor};

   Qnn_Param_t Transpose_token_39_0_params[] = {Transpose_token_39_0_param_0};
   uint32_t Transpose_token_39_0_input_0_dims[] = {1, 1, 1, 16};
   Qnn_QuantizeParams_t Transpose_token_39_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t Transpose_token_39_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_39_0_input_0_v1 = {0, "gap_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, Transpose_token_39_0_input_0_quantizeParams, 4, Transpose_token_39_0_input_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_39_0_input_0_clientBuf};
   Qnn_Tensor_t Transpose_token_39_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_39_0_input_0_v1};

   Qnn_Tensor_t Transpose_token_39_0_inputs[] = {Transpose_token_39_0_input_0};
   uint32_t Transpose_token_39_0_output_0_dims[] = {1, 16, 1, 1};
   Qnn_QuantizeParams_t Transpose_token_39_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t Transpose_token_39_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_39_0_output_0_v1 = {0, "QuantizeLinear_token_42_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, Transpose_token_39_0_output_0_quantizeParams, 4, Transpose_token_39_0_output_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_39_0_output_0_clientBuf};
   Qnn_Tensor_t Transpose_token_39_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_39_0_output_0_v1};

   Qnn_Tensor_t Transpose_token_39_0_outputs[] = {Transpose_token_39_0_output_0};
   Qnn_OpConfigV1_t Transpose_token_39_0_v1 = {"Transpose_token_39", "qti.aisw", "Transpose", 1, Transpose_token_39_0_params, 1, Transpose_token_39_0_inputs, 1, Transpose_token_39_0_outputs};
   Qnn_OpConfig_t Transpose_token_39_0 = {(Qnn_OpConfigVersion_t)1, .v1 = Transpose_token_39_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, Transpose_token_39_0));

   Qnn_Param_t* fl_2_0_params = NULL;
   uint32_t fl_2_0_input_0_dims[] = {1, 16, 1, 1};
   Qnn_QuantizeParams_t fl_2_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t fl_2_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fl_2_0_input_0_v1 = {0, "QuantizeLinear_token_42_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fl_2_0_input_0_quantizeParams, 4, fl_2_0_input_0_dims, (Qnn_TensorMemType_t)0, fl_2_0_input_0_clientBuf};
   Qnn_Tensor_t fl_2_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = fl_2_0_input_0_v1};

   Qnn_Tensor_t fl_2_0_inputs[] = {fl_2_0_input_0};
   uint32_t fl_2_0_output_0_dims[] = {1, 16};
   Qnn_QuantizeParams_t fl_2_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t fl_2_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fl_2_0_output_0_v1 = {0, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fl_2_0_output_0_quantizeParams, 2, fl_2_0_output_0_dims, (Qnn_TensorMemType_t)0, fl_2_0_output_0_clientBuf};
   Qnn_Tensor_t fl_2_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = fl_2_0_output_0_v1};

   Qnn_Tensor_t fl_2_0_outputs[] = {fl_2_0_output_0};
   Qnn_OpConfigV1_t fl_2_0_v1 = {"fl_2", "qti.aisw", "Reshape", 0, fl_2_0_params, 1, fl_2_0_inputs, 1, fl_2_0_outputs};
   Qnn_OpConfig_t fl_2_0 = {(Qnn_OpConfigVersion_t)1, .v1 = fl_2_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, fl_2_0));

   Qnn_Param_t* fc_2_0_params = NULL;
   uint32_t fc_2_0_input_0_dims[] = {1, 16};
   Qnn_QuantizeParams_t fc_2_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t fc_2_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fc_2_0_input_0_v1 = {0, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fc_2_0_input_0_quantizeParams, 2, fc_2_0_input_0_dims, (Qnn_TensorMemType_t)0, fc_2_0_input_0_clientBuf};
   Qnn_Tensor_t fc_2_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = fc_2_0_input_0_v1};

   uint32_t fc_2_0_input_1_dims[] = {10, 16};
   Qnn_QuantizeParams_t fc_2_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00614955463, -123}};
   static uint8_t fc_2_0_input_1_data[160];
   fread(fc_2_0_input_1_data, 1, 160, fp);
   Qnn_ClientBuffer_t fc_2_0_input_1_clientBuf = {(void*)fc_2_0_input_1_data, 160};
   Qnn_TensorV1_t fc_2_0_input_1_v1 = {0, "fw_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, fc_2_0_input_1_quantizeParams, 2, fc_2_0_input_1_dims, (Qnn_TensorMemType_t)0, fc_2_0_input_1_clientBuf};
   Qnn_Tensor_t fc_2_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = fc_2_0_input_1_v1};

   uint32_t fc_2_0_input_2_dims[] = {10};
   Qnn_QuantizeParams_t fc_2_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.10261452e-07, 0}};
   static int32_t fc_2_0_input_2_data[10];
   fread(fc_2_0_input_2_data, 4, 10, fp);
   Qnn_ClientBuffer_t fc_2_0_input_2_clientBuf = {(void*)fc_2_0_input_2_data, 40};
   Qnn_TensorV1_t fc_2_0_input_2_v1 = {0, "fb_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, fc_2_0_input_2_quantizeParams, 1, fc_2_0_input_2_dims, (Qnn_TensorMemType_t)0, fc_2_0_input_2_clientBuf};
   Qnn_Tensor_t fc_2_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = fc_2_0_input_2_v1};

   Qnn_Tensor_t fc_2_0_inputs[] = {fc_2_0_input_0, fc_2_0_input_1, fc_2_0_input_2};
   uint32_t fc_2_0_output_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t fc_2_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000110485802, -35167}};
   Qnn_ClientBuffer_t fc_2_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t fc_2_0_output_0_v1 = {0, "y_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, fc_2_0_output_0_quantizeParams, 2, fc_2_0_output_0_dims, (Qnn_TensorMemType_t)0, fc_2_0_output_0_clientBuf};
   Qnn_Tensor_t fc_2_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = fc_2_0_output_0_v1};

   Qnn_Tensor_t fc_2_0_outputs[] = {fc_2_0_output_0};
   Qnn_OpConfigV1_t fc_2_0_v1 = {"fc_2", "qti.aisw", "FullyConnected", 0, fc_2_0_params, 3, fc_2_0_inputs, 1, fc_2_0_outputs};
   Qnn_OpConfig_t fc_2_0 = {(Qnn_OpConfigVersion_t)1, .v1 = fc_2_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, fc_2_0));

   const QnnGraph_Config_t* context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_config_0[] = {NULL};
   Qnn_GraphHandle_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0;
   VALIDATE(error, interface.graphCreate(context_0, "QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0", context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_config_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_dims[] = {1, 3, 64, 64};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_v1 = {0, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_dims[] = {1, 10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000110485802, -35167}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_v1 = {0, "y", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_dims[] = {1, 64, 64, 3};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_v1 = {0, "QuantizeLinear_token_40_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_v1 = {0, "Transpose_token_29_59_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_3.v1.id, "Transpose_token_29_59_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0_tensor};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_param_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_dims[] = {1, 3, 64, 64};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_0.v1.id, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_dims[] = {1, 64, 64, 3};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2.v1.id, "QuantizeLinear_token_40_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_v1 = {"Transpose_token_29", "qti.aisw", "Transpose", 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_29_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_dims[] = {3, 3, 3, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00536338193, -141}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_data[432];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_data, 1, 432, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_data, 432};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_v1 = {0, "w0_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {7.20815137e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_v1 = {0, "b0_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_dims[] = {1, 32, 32, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {8.83037137e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_v1 = {0, "r0_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_v1 = {0, "conv0_token_1_37_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_v1 = {0, "conv0_token_1_37_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_v1 = {0, "conv0_token_1_37_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_7.v1.id, "conv0_token_1_37_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_8.v1.id, "conv0_token_1_37_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_9.v1.id, "conv0_token_1_37_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_3_scalar};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_4_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_param_4};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_dims[] = {1, 64, 64, 3};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000134395639, -35314}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_2.v1.id, "QuantizeLinear_token_40_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_dims[] = {3, 3, 3, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00536338193, -141}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_data[432];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_data, 1, 432, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_data, 432};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_4.v1.id, "w0_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {7.20815137e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_5.v1.id, "b0_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_dims[] = {1, 32, 32, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {8.83037137e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6.v1.id, "r0_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_v1 = {"conv0_token_1", "qti.aisw", "Conv2d", 5, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv0_token_1_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00531288004, -147}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_data[2304];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_data, 1, 2304, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_data, 2304};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_v1 = {0, "w1_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {4.69147039e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_v1 = {0, "b1_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_dims[] = {1, 16, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000128089538, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_v1 = {0, "r1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_v1 = {0, "conv1_token_7_42_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_v1 = {0, "conv1_token_7_42_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_v1 = {0, "conv1_token_7_42_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_13.v1.id, "conv1_token_7_42_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_14.v1.id, "conv1_token_7_42_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_15.v1.id, "conv1_token_7_42_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_3_scalar};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_4_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_param_4};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_dims[] = {1, 32, 32, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {8.83037137e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_6.v1.id, "r0_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00531288004, -147}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_data[2304];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_data, 1, 2304, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_data, 2304};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_10.v1.id, "w1_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {4.69147039e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_11.v1.id, "b1_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_dims[] = {1, 16, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000128089538, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12.v1.id, "r1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_v1 = {"conv1_token_7", "qti.aisw", "Conv2d", 5, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv1_token_7_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00479907077, -119}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_data[2304];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_data, 1, 2304, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_data, 2304};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_v1 = {0, "w2_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.14710757e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_v1 = {0, "b2_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_dims[] = {1, 8, 8, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000146656574, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_v1 = {0, "r2_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_v1 = {0, "conv2_token_13_47_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_v1 = {0, "conv2_token_13_47_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_v1 = {0, "conv2_token_13_47_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_19.v1.id, "conv2_token_13_47_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_20.v1.id, "conv2_token_13_47_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_21.v1.id, "conv2_token_13_47_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_3_scalar};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_4_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_param_4};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_dims[] = {1, 16, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000128089538, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_12.v1.id, "r1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00479907077, -119}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_data[2304];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_data, 1, 2304, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_data, 2304};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_16.v1.id, "w2_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.14710757e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_17.v1.id, "b2_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_dims[] = {1, 8, 8, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000146656574, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18.v1.id, "r2_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_v1 = {"conv2_token_13", "qti.aisw", "Conv2d", 5, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv2_token_13_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00511107361, -132}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_data[2304];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_data, 1, 2304, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_data, 2304};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_v1 = {0, "w3_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {7.49572564e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_v1 = {0, "b3_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_dims[] = {1, 4, 4, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000209509963, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_v1 = {0, "r3_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_v1 = {0, "conv3_token_19_52_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_v1 = {0, "conv3_token_19_52_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_v1 = {0, "conv3_token_19_52_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_25.v1.id, "conv3_token_19_52_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_26.v1.id, "conv3_token_19_52_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_27.v1.id, "conv3_token_19_52_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_3_scalar};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_4_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_param_4};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_dims[] = {1, 8, 8, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000146656574, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_18.v1.id, "r2_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_dims[] = {3, 3, 16, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00511107361, -132}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_data[2304];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_data, 1, 2304, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_data, 2304};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_22.v1.id, "w3_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_dims[] = {16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {7.49572564e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_data[16];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_data, 4, 16, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_23.v1.id, "b3_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_dims[] = {1, 4, 4, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000209509963, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24.v1.id, "r3_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_v1 = {"conv3_token_19", "qti.aisw", "Conv2d", 5, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_conv3_token_19_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_dims[] = {1, 1, 1, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_v1 = {0, "gap_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_v1 = {0, "gap_token_26_57_filter_size", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_v1 = {0, "gap_token_26_57_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_v1 = {0, "gap_token_26_57_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_29.v1.id, "gap_token_26_57_filter_size", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0 = {(Qnn_ParamType_t)1, "filter_size", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_30.v1.id, "gap_token_26_57_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_31.v1.id, "gap_token_26_57_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_3_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_3 = {(Qnn_ParamType_t)0, "count_pad_for_edges", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_3_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_param_3};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_dims[] = {1, 4, 4, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000209509963, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_24.v1.id, "r3_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_dims[] = {1, 1, 1, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28.v1.id, "gap_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_v1 = {"gap_token_26", "qti.aisw", "PoolAvg2d", 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_gap_token_26_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_dims[] = {1, 16, 1, 1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_v1 = {0, "QuantizeLinear_token_42_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_v1 = {0, "Transpose_token_39_69_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_33.v1.id, "Transpose_token_39_69_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0_tensor};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_param_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_dims[] = {1, 1, 1, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_28.v1.id, "gap_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_dims[] = {1, 16, 1, 1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32.v1.id, "QuantizeLinear_token_42_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_v1 = {"Transpose_token_39", "qti.aisw", "Transpose", 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_Transpose_token_39_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_dims[] = {1, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_v1 = {0, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34));

   Qnn_Param_t* context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_params = NULL;
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_dims[] = {1, 16, 1, 1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_32.v1.id, "QuantizeLinear_token_42_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_dims[] = {1, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34.v1.id, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_v1 = {"fl", "qti.aisw", "Reshape", 0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fl_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_dims[] = {10, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00614955463, -123}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_data[160];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_data, 1, 160, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_data, 160};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_v1 = {0, "fw_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_dims[] = {10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.10261452e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_data[10];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_data, 4, 10, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_data, 40};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_v1 = {0, "fb_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36));

   Qnn_Param_t* context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_params = NULL;
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_dims[] = {1, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {9.92366913e-05, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_34.v1.id, "fl_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_dims[] = {10, 16};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00614955463, -123}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_data[160];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_data, 1, 160, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_data, 160};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_35.v1.id, "fw_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_dims[] = {10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {6.10261452e-07, 0}};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_data[10];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_data, 4, 10, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_data, 40};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_36.v1.id, "fb_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.000110485802, -35167}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_tensor_1.v1.id, "y", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)1046, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_v1 = {"fc", "qti.aisw", "FullyConnected", 0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0_fc_0));

   VALIDATE(error, interface.graphFinalize(context_0_QNNExecutionProvider_QNNExecutionProvider_2425018323711980866_1_0, NULL, NULL));

   VALIDATE(error, interface.contextFree(context_0, NULL));

   VALIDATE(error, interface.deviceFree(device_0));

   VALIDATE(error, interface.backendFree(backend_0));

   if (logging) {
     VALIDATE(error, interface.logFree(loghandle));
   }

   if (fclose(fp)) error = -1;
   return error == 0 || error == QNN_COMMON_ERROR_NOT_SUPPORTED ? 0 : error;
}
